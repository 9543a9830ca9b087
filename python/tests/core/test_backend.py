"""What ``pip install ./python`` builds: a wheel with the program, or without."""

from __future__ import annotations

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
            copy = Path(folder, "python")
            shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "tests", "examples"))
            left = copy / "build/lib/eadt/gone.py"
            left.parent.mkdir(parents=True)
            left.touch()
            make = "import sys; sys.path.insert(0, 'backend'); import backend; print(backend.build_wheel('.'))"
            environment = {**os.environ, "EADT_WHEEL": "pure"}
            made = subprocess.run([sys.executable, "-c", make], cwd=copy, env=environment, capture_output=True, text=True, check=False)
            self.assertEqual(made.returncode, 0, made.stderr)
            with zipfile.ZipFile(copy / made.stdout.splitlines()[-1]) as wheel:
                names = wheel.namelist()
        sources = {f"eadt/{path.name}" for path in (FOLDER / "src/eadt").glob("*.py")}
        self.assertLessEqual(sources | {"eadt/py.typed"}, set(names))
        self.assertNotIn("eadt/gone.py", names, "left by an earlier build")
        self.assertTrue(any(name.endswith(".dist-info/licenses/LICENSE") for name in names), names)
        scripts = [name for name in names if ".data/scripts/" in name]
        self.assertEqual([Path(name).name for name in scripts], ["eadt-run"])

    def test_the_license_is_the_repositorys(self) -> None:
        self.assertEqual((FOLDER / "LICENSE").read_text(), (FOLDER.parent / "LICENSE").read_text())


if __name__ == "__main__":
    unittest.main()
