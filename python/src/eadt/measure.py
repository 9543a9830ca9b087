"""Joules of a stretch of code, from the energy counters of this machine's NVIDIA GPUs. Unknown is ``None``, never 0."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

#: Seconds for which a reading holds while a measurement runs.
READING_SECONDS: Final = 1.0


class Measurement:
    """Energy and duration between ``__enter__`` and ``__exit__``; while it runs, the energy until now.

    ``amount``: what is done with the energy, such as samples; it is asked at each reading, so that both are of the same moment.
    """

    def __init__(self, name: str = "", amount: Callable[[], float] | None = None) -> None:
        self.name = name
        #: Seconds from the beginning to the end; ``None`` while it runs.
        self.seconds: float | None = None
        self.is_running = False
        self._joules: float | None = None
        self._reason: str | None = "it was not begun"
        self._devices = 0
        self._amount = amount
        #: What was done until the last reading.
        self.amount = 0.0
        #: When it began, the counters then, and why they could not be read.
        self._start: tuple[float, dict[str, float], str | None] | None = None
        #: The last counters that were read, and when the next reading is due while it runs.
        self._last: dict[str, float] = {}
        self._due = 0.0

    @property
    def joules(self) -> float | None:
        """Joules of all GPUs that this process can use, while it runs until at most a second ago; ``None``: see ``reason``."""
        self._refresh()
        return self._joules

    @joules.setter
    def joules(self, joules: float | None) -> None:
        self._joules = joules

    @property
    def reason(self) -> str | None:
        """Why the energy is unknown; ``None``: it is known."""
        self._refresh()
        return self._reason

    @reason.setter
    def reason(self, reason: str | None) -> None:
        self._reason = reason

    @property
    def devices(self) -> int:
        """GPUs whose energy is in ``joules``."""
        self._refresh()
        return self._devices

    @devices.setter
    def devices(self, devices: int) -> None:
        self._devices = devices

    def __enter__(self) -> Measurement:
        counters, reason = read_counters()
        # What was measured before is of another stretch.
        self.seconds, self._joules, self._reason, self._devices, self.amount = None, None, reason, 0, 0.0
        self._start, self._last, self._due = (time.perf_counter(), counters, reason), counters, 0.0
        self.is_running = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._start is None:
            return
        self.is_running = False
        self._read(self._start)
        self.seconds = time.perf_counter() - self._start[0]

    def _refresh(self) -> None:
        """Reads the counters of a measurement that runs, once a second at most: a loop may ask in each step."""
        if not self.is_running or self._start is None or time.perf_counter() < self._due:
            return
        self._read(self._start)
        self._due = time.perf_counter() + READING_SECONDS

    def _read(self, start: tuple[float, dict[str, float], str | None]) -> None:
        _, before, unread = start
        counters, reason = read_counters()
        if self._amount is not None:
            self.amount = self._amount()
        joules = None
        if not before or counters.keys() != before.keys():
            reason = unread or reason or "the GPUs changed meanwhile"
        elif any(counters[device] < self._last[device] for device in before):
            # What is counted from there on is not all; it may be more than before again.
            reason = "an energy counter was reset meanwhile"
            self._start = (start[0], {}, reason)
        else:
            self._last = counters
            joules = sum(counters[device] - before[device] for device in before)
            # A GPU always draws power. Its counter moves some times a second.
            joules, reason = (joules, None) if joules > 0 else (None, "the energy counters did not move yet: it was too short")
        self._joules, self._reason, self._devices = joules, reason, 0 if joules is None else len(before)

    def __repr__(self) -> str:
        joules = self.joules
        known = f"{joules:.1f} J" if joules is not None else f"energy unknown ({self.reason})"
        seconds = f", {self.seconds:.3f} s" if self.seconds is not None else ", running" if self.is_running else ""
        return f"<{self.name or 'measurement'}: {known}{seconds}>"


def measure(name: str = "") -> Measurement:
    """Measures a ``with`` block: ``with eadt.measure("eval") as m: ...``; then ``m.joules``."""
    return Measurement(name)


_lock = threading.Lock()
_library: Any = None
_failure: str | None = None


def _load() -> Any:
    """Returns NVML, initialised once; ``None`` with the reason in ``_failure``."""
    global _library, _failure
    with _lock:
        if _library is None and _failure is None:
            try:
                library = ctypes.CDLL("libnvidia-ml.so.1")
                if library.nvmlInit_v2() != 0:
                    _failure = "NVML does not start: there is no driver"
                else:
                    _library = library
            except OSError:
                _failure = "there is no NVIDIA driver (libnvidia-ml.so.1)"
            except Exception as error:
                _failure = _unusable(error)
        return _library


def read_counters() -> tuple[dict[str, float], str | None]:
    """Returns the energy counters in joules by the UUID of the GPU, or none and the reason."""
    library = _load()
    if library is None:
        return {}, _failure
    try:
        handles = _handles(library)
        counters = {uuid: _joules(library, handle) for uuid, handle in handles.items()}
    except _Unknown as unknown:
        return {}, str(unknown)
    except Exception as error:
        return {}, _unusable(error)
    return (counters, None) if counters else ({}, "this process can use no GPU")


def _unusable(error: Exception) -> str:
    """Returns the reason if NVML is not as it should be: an old one, or one that only looks like it, lacks functions."""
    return f"NVML (libnvidia-ml.so.1) cannot be asked: {error or type(error).__name__}"


class _Unknown(Exception):
    pass


def _joules(library: Any, handle: ctypes.c_void_p) -> float:
    millijoules = ctypes.c_ulonglong()
    if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)) != 0:
        raise _Unknown("a GPU has no energy counter")
    return millijoules.value / 1000.0


def _handles(library: Any) -> dict[str, ctypes.c_void_p]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        raise _Unknown("NVML does not count the GPUs")
    handles: list[tuple[str, ctypes.c_void_p]] = []
    for index in range(count.value):
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            raise _Unknown(f"GPU {index} does not answer")
        if library.nvmlDeviceGetUUID(handle, text, len(text)) != 0:
            raise _Unknown(f"GPU {index} has no UUID")
        handles.append((text.value.decode(), handle))
    return dict(_visible(handles))


def _visible(handles: list[tuple[str, ctypes.c_void_p]]) -> list[tuple[str, ctypes.c_void_p]]:
    """Leaves those that ``CUDA_VISIBLE_DEVICES`` names."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return handles
    chosen: list[tuple[str, ctypes.c_void_p]] = []
    for name in filter(None, (part.strip() for part in wanted.split(","))):
        if name == "-1":
            break
        if name.isdigit():
            # CUDA numbers the fastest first unless configured otherwise, NVML by the bus.
            if len(handles) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
                raise _Unknown("which GPU is meant is not known: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or UUIDs")
            if int(name) >= len(handles):
                break
            chosen.append(handles[int(name)])
            continue
        matches = [entry for entry in handles if entry[0].startswith(name)]
        if not matches:
            raise _Unknown(f"CUDA_VISIBLE_DEVICES names {name}, which NVML does not have as a whole GPU")
        chosen.append(matches[0])
    return chosen
