"""Builds the wheel: with the program where Rust and its sources are at hand, else without.

``EADT_WHEEL=pure`` leaves the program out; ``EADT_WHEEL=program`` fails where it cannot be built. Sources and editable installs have none.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

PROGRAM, PURE = ["maturin>=1.9,<2"], ["setuptools>=77"]


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
    return PROGRAM if brings_program() else PURE


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return PURE


get_requires_for_build_editable = get_requires_for_build_sdist


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    if brings_program():
        import maturin

        return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))
    from setuptools import build_meta

    # What an earlier build left here would be packed again, modules included that are gone since.
    shutil.rmtree(Path(__file__).resolve().parents[1] / "build", ignore_errors=True)
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    from setuptools import build_meta

    return str(build_meta.build_sdist(sdist_directory, config_settings))


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    from setuptools import build_meta

    return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))
