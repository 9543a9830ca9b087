"""Fields of ``training.progress.v1`` and the names of precisions in events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

#: Fields that a job may set; ``collector``, ``origin`` and ``time`` of the arrival are the collector's.
PROGRESS_FIELDS: Final = frozenset(
    {
        "time",
        "workload",
        "rank",
        "scope",
        "phase",
        "last",
        "span",
        "samples_total",
        "tokens_total",
        "steps_total",
        "samples_per_second",
        "tokens_per_second",
        "loss",
        "epoch",
        "checkpoint_time",
        "steps_remaining",
        "remaining_seconds",
        "global_batch_size",
        "world_size",
        "backend",
        "precision",
        "overflow_skips_total",
        "gradient_norm",
        "frozen_prefix_layers",
        "mps_thread_percentage",
        "validation_loss",
        "learning_rate",
        "loss_scale",
        "layers",
        "plasticity",
        "live_knobs",
        "decision_id",
        "directive_refused",
    }
)

#: Longest text that the collector takes.
MAX_TEXT_BYTES: Final = 253

_PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "fp32": ("float32", "float", "32", "32-true", "single", "no"),
    "tf32": ("tensorfloat32",),
    "fp16": ("float16", "half", "16", "16-mixed", "16-true", "fp16-mixed"),
    "bf16": ("bfloat16", "bf16-mixed", "bf16-true"),
    "fp8": ("float8", "float8_e4m3fn", "float8_e5m2", "transformer-engine", "transformer-engine-float16", "fp8-mixed"),
}


def event_precision(given: object) -> str:
    """Returns the name of a precision in events; one that is not known stays as it is, in lower case."""
    plain = str(given).strip().lower().removeprefix("torch.")
    for name, others in _PRECISIONS.items():
        if plain == name or plain in others:
            return name
    return plain


def event_time(moment: datetime | None = None) -> str:
    """Returns a time as it stands in events: RFC 3339, UTC, microseconds."""
    return (moment or datetime.now(timezone.utc)).astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def clip_text(text: str) -> str:
    """Returns a text without control characters, short enough for the collector."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return plain.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def plain_value(value: Any) -> Any:
    """Returns a value as JSON has it: tensors become numbers, what is no number becomes ``None``."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return clip_text(value)
    if isinstance(value, (list, tuple)):
        return [plain_value(entry) for entry in value]
    number = float(value)
    return number if math.isfinite(number) else None


def plain_event(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an event without what is absent or no number; a value that cannot be read costs that field alone."""
    event: dict[str, Any] = {}
    for name, value in fields.items():
        try:
            plain = plain_value(value)
        except Exception:
            continue
        if plain is not None and name in PROGRESS_FIELDS:
            event[name] = plain
    return event
