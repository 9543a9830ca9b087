"""Fields of ``training.progress.v1`` and the names of precisions in events."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, Final

#: Numbers of events, with the least and the greatest that the collector takes.
NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    "samples_total": (0, 1e18),
    "tokens_total": (0, 1e18),
    "steps_total": (0, 1e18),
    "samples_per_second": (0, 1e12),
    "tokens_per_second": (0, 1e15),
    "loss": (-math.inf, math.inf),
    "epoch": (0, 1e9),
    "steps_remaining": (0, 1e18),
    "remaining_seconds": (0, 1e18),
    "overflow_skips_total": (0, 1e18),
    "gradient_norm": (0, math.inf),
    "validation_loss": (-math.inf, math.inf),
    "learning_rate": (0, math.inf),
    "loss_scale": (0, math.inf),
}
#: Whole numbers of events, likewise.
WHOLE_NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    "rank": (0, 2**32 - 1),
    "global_batch_size": (0, 2**32 - 1),
    "world_size": (0, 2**32 - 1),
    "frozen_prefix_layers": (0, 2**32 - 1),
    "mps_thread_percentage": (1, 100),
    "layers": (0, 2**32 - 1),
}
TEXTS: Final = frozenset({"workload", "span", "backend", "precision", "decision_id", "directive_refused"})
TIMES: Final = frozenset({"time", "checkpoint_time"})
#: Texts that are one of a few.
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"phase": ("started", "progress", "finished"), "scope": ("global", "rank")}

#: Fields that a job may set; ``collector``, ``origin`` and ``time`` of the arrival are the collector's.
PROGRESS_FIELDS: Final = frozenset({*NUMBERS, *WHOLE_NUMBERS, *TEXTS, *TIMES, *CHOICES, "last", "plasticity", "live_knobs"})

#: Longest text that the collector takes.
MAX_TEXT_BYTES: Final = 253
#: Bytes of the id of a decision, at most.
MAX_ID_BYTES: Final = 1024
#: Longest list that the collector takes.
MAX_ENTRIES: Final = 4096

#: A time as the collector reads it.
_EVENT_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")

_PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "fp32": ("float32", "float", "32", "32-true", "single", "no"),
    "tf32": ("tensorfloat32",),
    "fp16": ("float16", "half", "16", "16-mixed", "16-true", "fp16-mixed"),
    "bf16": ("bfloat16", "bf16-mixed", "bf16-true"),
    "fp8": ("float8", "float8_e4m3fn", "float8_e5m2", "transformer-engine", "transformer-engine-float16", "fp8-mixed"),
}


def nearest(name: object, names: Iterable[str]) -> str:
    """Returns the question for the nearest of these names, to follow one that does not exist; empty if none is near."""
    near = difflib.get_close_matches(str(name), sorted(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def event_precision(given: object) -> str:
    """Returns the name of a precision in events; one that is not known stays as it is, in lower case."""
    plain = str(given).strip().lower().removeprefix("torch.")
    for name, others in _PRECISIONS.items():
        if plain == name or plain in others:
            return name
    return plain


def event_time(moment: datetime | None = None) -> str:
    """Returns a time as it is written in events: RFC 3339, UTC, microseconds."""
    return (moment or datetime.now(timezone.utc)).astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def clip_text(text: str) -> str:
    """Returns a text without control characters, short enough for the collector."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return plain.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def plain_event(fields: Mapping[str, Any], unfit: Callable[[str, str], None] | None = None) -> dict[str, Any]:
    """Returns an event as the collector takes it, without what is absent or no number.

    Numbers may be texts, tensors of one or NumPy's. A value that does not fit costs that field alone: ``unfit`` gets its name, and what
    it is instead.
    """
    event: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name not in PROGRESS_FIELDS:
            continue
        try:
            plain = _plain_field(name, value)
        except Exception as error:
            if unfit is not None:
                unfit(name, str(error) if isinstance(error, _Unfit) else f"unreadable ({type(value).__name__})")
            continue
        if plain is not None:
            event[name] = plain
    return event


class _Unfit(Exception):
    """A value that its field does not take; the text is what it is instead."""


def _plain_field(name: str, value: Any) -> Any:
    """Returns the value of a field as JSON has it; ``None``: not a finite number."""
    if name in NUMBERS:
        return _number(value, *NUMBERS[name])
    if name in WHOLE_NUMBERS:
        return _whole(value, *WHOLE_NUMBERS[name])
    if name in TIMES:
        return _time(value)
    if name == "decision_id":
        # As it was received: a truncated id matches no decision.
        if not isinstance(value, str) or len(value.encode()) > MAX_ID_BYTES:
            raise _Unfit("no id of a decision")
        return value
    if name == "precision" and not isinstance(value, str):
        return clip_text(event_precision(value))
    if name in CHOICES:
        text = _text(value).strip().lower()
        if text not in CHOICES[name]:
            raise _Unfit(f"none of {', '.join(CHOICES[name])}")
        return text
    if name == "last":
        flag = _whole(value, 0, 1)
        return None if flag is None else bool(flag)
    if name == "plasticity":
        return [None if entry is None else _number(entry, 0, 1) for entry in _entries(value)]
    if name == "live_knobs":
        return [_text(entry) for entry in _entries(value)]
    return _text(value)


def _number(value: Any, least: float, most: float) -> int | float | None:
    """Returns a number, a whole one as it is; ``None`` if it is not finite, as losses may be."""
    try:
        # Torch warns about a number of which a gradient is wanted.
        number = float(value.detach() if hasattr(value, "detach") else value)
    except OverflowError:
        raise _Unfit("too large") from None
    except (TypeError, ValueError):
        raise _Unfit(f"no number but {_kind(value)}") from None
    if not math.isfinite(number):
        return None
    if not least <= number <= most:
        raise _Unfit("negative" if number < 0 else "too small" if number < least else "too large")
    return value if type(value) is int else number


def _whole(value: Any, least: int, most: int) -> int | None:
    number = _number(value, least, most)
    if number is not None and number != int(number):
        raise _Unfit("no whole number")
    return None if number is None else int(number)


def _text(value: Any) -> str:
    if not isinstance(value, (str, int, float)):
        # Numbers of NumPy and tensors of one.
        value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (str, int, float)):
        raise _Unfit(f"no text but {_kind(value)}")
    return clip_text(value if isinstance(value, str) else str(value))


def _time(value: Any) -> str:
    """Returns a time as it is written in events; numbers are seconds since 1970, and one without a zone is of this machine's."""
    if isinstance(value, str):
        if _EVENT_TIME.fullmatch(value):
            return value
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise _Unfit("no time as 2026-01-31T12:00:00Z") from None
    if isinstance(value, datetime):
        return event_time(value)
    return event_time(datetime.fromtimestamp(float(value), timezone.utc))


def _entries(value: Any) -> list[Any]:
    """Returns what a list holds, or an array of NumPy or a tensor."""
    entries = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(entries, (list, tuple)):
        raise _Unfit(f"no list but {_kind(value)}")
    if len(entries) > MAX_ENTRIES:
        raise _Unfit(f"a list of more than {MAX_ENTRIES}")
    return list(entries)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} of the shape {tuple(value.shape)}" if getattr(value, "shape", None) else type(value).__name__
