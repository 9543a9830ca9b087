"""Builds the wheel: with the program where Rust and its sources are at hand, else without.

``EADT_WHEEL=pure`` leaves the program out; ``EADT_WHEEL=program`` fails where it cannot be built. Sources and editable installs have none.
``EADT_WHEEL_PROGRAM`` names a program that was built before: it is packed as it is, and Rust is not needed.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

PROGRAM, PURE = ["maturin>=1.9,<2"], ["setuptools>=77"]


def built_program() -> Path | None:
    """Returns the program that ``EADT_WHEEL_PROGRAM`` names, if it does."""
    name = os.environ.get("EADT_WHEEL_PROGRAM", "")
    if not name:
        return None
    if os.environ.get("EADT_WHEEL", "") == "pure":
        raise ValueError("EADT_WHEEL is pure, and EADT_WHEEL_PROGRAM names a program: leave one of them out")
    return Path(name)


def refusal_of(program: Path) -> str | None:
    """Returns why a program cannot be in the wheel: it is absent, does not run here, or is of another version than the package."""
    if not program.is_absolute():
        return "its path is not absolute, and wheels are built in a folder of their own"
    try:
        result = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run on this machine: {error}"
    words = result.stdout.split()
    if result.returncode != 0 or words[:1] != ["eadt"]:
        return f"it is not eadt: --version ends with status {result.returncode} and prints {result.stdout[:80]!r}"
    own = re.search(r'^version = "(.+)"$', Path(__file__).resolve().parents[1].joinpath("pyproject.toml").read_text(), re.MULTILINE)
    version = own[1] if own else ""
    return None if words[1:2] == [version] else f"it is version {' '.join(words[1:2])}, and the package is {version}"


def with_program(wheel: Path, program: Path) -> Path:
    """Writes a wheel of Python alone again with a program, for machines like this one. Returns its path; the old one is removed."""
    name, version = wheel.name.split("-")[:2]
    tag = "py3-none-" + re.sub(r"[^A-Za-z0-9]", "_", sysconfig.get_platform())
    information, script = f"{name}-{version}.dist-info", f"{name}-{version}.data/scripts/eadt"
    made = wheel.with_name(f"{name}-{version}-{tag}.whl")
    rows: list[tuple[str, str, int | str]] = []
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:

        def write(entry: zipfile.ZipInfo, data: bytes) -> None:
            new.writestr(entry, data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append((entry.filename, f"sha256={digest}", len(data)))

        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename == f"{information}/WHEEL":
                data = re.sub(rb"(?m)^Tag: .*$", f"Tag: {tag}".encode(), data)
                data = re.sub(rb"(?m)^Root-Is-Purelib: .*$", b"Root-Is-Purelib: false", data)
            if entry.filename != f"{information}/RECORD":
                write(entry, data)
        entry = zipfile.ZipInfo(script, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = 0o100755 << 16
        write(entry, program.read_bytes())
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (f"{information}/RECORD", "", "")])
        new.writestr(f"{information}/RECORD", text.getvalue())
    wheel.unlink()
    return made


def brings_program() -> bool:
    """Returns whether the wheel gets the program."""
    wanted = os.environ.get("EADT_WHEEL", "")
    if wanted in ("pure", "program"):
        return wanted == "program"
    if wanted:
        raise ValueError(f"EADT_WHEEL is {wanted!r}: pure, program, or not set")
    has_sources = Path(__file__).resolve().parents[2].joinpath("Cargo.toml").is_file()
    return has_sources and shutil.which("cargo") is not None


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return PROGRAM if built_program() is None and brings_program() else PURE


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return PURE


get_requires_for_build_editable = get_requires_for_build_sdist


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    program = built_program()
    if program is None and brings_program():
        import maturin

        return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))
    why = None if program is None else refusal_of(program)
    if why is not None:
        raise ValueError(f"EADT_WHEEL_PROGRAM is {program}, which cannot be in the wheel: {why}")
    from setuptools import build_meta

    # What an earlier build left here would be packed again, modules included that are gone since.
    shutil.rmtree(Path(__file__).resolve().parents[1] / "build", ignore_errors=True)
    made = str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))
    return made if program is None else with_program(Path(wheel_directory, made), program).name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    from setuptools import build_meta

    return str(build_meta.build_sdist(sdist_directory, config_settings))


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    from setuptools import build_meta

    return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))
