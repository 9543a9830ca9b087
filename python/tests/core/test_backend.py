"""What ``pip install ./python`` builds: a wheel with the program, or without."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

FOLDER = Path(__file__).resolve().parents[2]
specification = importlib.util.spec_from_file_location("backend", FOLDER / "backend/backend.py")
assert specification is not None and specification.loader is not None
backend = importlib.util.module_from_spec(specification)
specification.loader.exec_module(backend)


def has_setuptools() -> bool:
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


def copy_sources(folder: str) -> Path:
    """Returns a copy of the package's sources, in which a wheel can be built."""
    copy = Path(folder, "python")
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "tests", "examples"))
    return copy


def build(copy: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Builds a wheel beside the sources, and prints its name."""
    make = "import sys; sys.path.insert(0, 'backend'); import backend; print(backend.build_wheel('.'))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EADT_")}
    return subprocess.run([sys.executable, "-c", make], cwd=copy, env={**clean, **variables}, capture_output=True, text=True, check=False)


def stand_in(folder: str, version: str) -> Path:
    """Returns a program that has nothing but a version."""
    program = Path(folder, version.split()[0] + version.split()[1])
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    return program


class TestBackend(unittest.TestCase):
    def test_the_program_is_built_where_rust_is_and_is_left_out_where_it_is_not(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            cargo = Path(folder, "cargo")
            cargo.write_text("#!/bin/sh\n")
            cargo.chmod(0o755)
            with mock.patch.dict(os.environ, {"PATH": folder}):
                os.environ.pop("EADT_WHEEL", None)
                self.assertEqual(backend.get_requires_for_build_wheel(), backend.PROGRAM)
                os.environ["EADT_WHEEL"] = "pure"
                self.assertEqual(backend.get_requires_for_build_wheel(), backend.PURE)
        with mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            os.environ.pop("EADT_WHEEL", None)
            self.assertEqual(backend.get_requires_for_build_wheel(), backend.PURE)
            os.environ["EADT_WHEEL"] = "program"
            self.assertEqual(backend.get_requires_for_build_wheel(), backend.PROGRAM)
            os.environ["EADT_WHEEL"] = "yes"
            with self.assertRaisesRegex(ValueError, "pure, program, or not set"):
                backend.get_requires_for_build_wheel()

    @unittest.skipUnless(has_setuptools(), "setuptools is absent or too old for this pyproject.toml")
    def test_a_wheel_without_the_program_has_the_package_and_eadt_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_sources(folder)
            left = copy / "build/lib/eadt/gone.py"
            left.parent.mkdir(parents=True)
            left.touch()
            made = build(copy, EADT_WHEEL="pure")
            self.assertEqual(made.returncode, 0, made.stderr)
            with zipfile.ZipFile(copy / made.stdout.splitlines()[-1]) as wheel:
                names = wheel.namelist()
        sources = {f"eadt/{path.name}" for path in (FOLDER / "src/eadt").glob("*.py")}
        self.assertLessEqual(sources | {"eadt/py.typed"}, set(names))
        self.assertNotIn("eadt/gone.py", names, "left by an earlier build")
        self.assertTrue(any(name.endswith(".dist-info/licenses/LICENSE") for name in names), names)
        scripts = [name for name in names if ".data/scripts/" in name]
        self.assertEqual([Path(name).name for name in scripts], ["eadt-run"])

    @unittest.skipUnless(has_setuptools(), "setuptools is absent or too old for this pyproject.toml")
    def test_a_program_that_was_built_before_is_packed_and_runs_once_installed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy, program = copy_sources(folder), stand_in(folder, "eadt 0.1.0 (0123456789ab)")
            made = build(copy, EADT_WHEEL="program", EADT_WHEEL_PROGRAM=str(program), PATH="/usr/bin:/bin")
            self.assertEqual(made.returncode, 0, made.stderr)
            wheel = copy / made.stdout.splitlines()[-1]
            self.assertNotIn("-any.whl", wheel.name)
            self.assertEqual(list(copy.glob("*.whl")), [wheel], "the one of Python alone is gone")
            with zipfile.ZipFile(wheel) as packed:
                tags = packed.read("eadt-0.1.0.dist-info/WHEEL").decode()
                rows = list(csv.reader(packed.read("eadt-0.1.0.dist-info/RECORD").decode().splitlines()))
                self.assertEqual(sorted(name for name, _, _ in rows), sorted(packed.namelist()))
                for name, digest, size in rows[:-1]:
                    data = packed.read(name)
                    hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                    self.assertEqual((digest, size), (f"sha256={hashed}", str(len(data))), name)
            self.assertIn(f"Tag: {wheel.stem.split('-', 2)[2]}\n", tags)
            self.assertIn("Root-Is-Purelib: false\n", tags)
            home = Path(folder, "home")
            install = [
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-index",
                "--no-compile",
                "--disable-pip-version-check",
                "--target",
                str(home),
                str(wheel),
            ]
            subprocess.run([sys.executable, *install], check=True, capture_output=True)
            version = subprocess.run([str(home / "bin/eadt"), "--version"], capture_output=True, text=True, check=True).stdout
            self.assertEqual(version, "eadt 0.1.0 (0123456789ab)\n")
            places = {**os.environ, "PYTHONPATH": str(home)}
            ran = subprocess.run([str(home / "bin/eadt-run"), "--help"], env=places, capture_output=True, text=True, check=True).stdout
            self.assertIn("--workload", ran)

    @unittest.skipUnless(has_setuptools(), "setuptools is absent or too old for this pyproject.toml")
    def test_a_program_of_another_version_or_of_another_machine_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_sources(folder)
            foreign = Path(folder, "foreign")
            foreign.write_bytes(b"\x7fELF of another machine")
            foreign.chmod(0o755)
            for program, why in [
                (str(stand_in(folder, "eadt 0.2.0")), "it is version 0.2.0, and the package is 0.1.0"),
                (str(stand_in(folder, "cargo 1.90.0")), "it is not eadt: --version ends with status 0 and prints 'cargo 1.90.0"),
                (str(foreign), "it does not run on this machine"),
                (str(Path(folder, "absent")), "it does not run on this machine"),
                ("target/release/eadt", "its path is not absolute"),
            ]:
                with self.subTest(why):
                    made = build(copy, EADT_WHEEL_PROGRAM=program)
                    self.assertNotEqual(made.returncode, 0)
                    self.assertIn(why, made.stderr)
                    self.assertEqual(list(copy.glob("*.whl")), [])
            made = build(copy, EADT_WHEEL_PROGRAM=str(foreign), EADT_WHEEL="pure")
            self.assertIn("leave one of them out", made.stderr)

    def test_the_license_is_the_repositorys(self) -> None:
        self.assertEqual((FOLDER / "LICENSE").read_text(), (FOLDER.parent / "LICENSE").read_text())


if __name__ == "__main__":
    unittest.main()
