"""What a job is asked to do, and how all ranks learn it at the same step."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Directive:
    """A whole request: what it does not name is as the job was started with."""

    decision_id: str
    precision: str | None = None
    frozen_prefix_layers: int | None = None
    checkpoint_now: bool = False


def parse_answer(told: dict[str, Any]) -> tuple[int, Directive | None]:
    """Reads ``{"revision", "directive"}`` as the collector answers; raises ``ValueError`` if it is none."""
    revision, body = told.get("revision"), told.get("directive")
    if not isinstance(revision, int) or isinstance(revision, bool):
        raise ValueError("a directive has no revision")
    if body is None:
        return revision, None
    layers, precision = body.get("frozen_prefix_layers"), body.get("precision")
    directive = Directive(
        decision_id=str(body["decision_id"]),
        precision=None if precision is None else str(precision),
        frozen_prefix_layers=None if layers is None else int(layers),
        checkpoint_now=bool(body.get("checkpoint_now", False)),
    )
    return revision, directive


def read_file(path: Path) -> dict[str, Any] | None:
    """Returns the answer that a file holds; the time of its last change is its revision if it names none. ``None``: no file."""
    try:
        told = json.loads(path.read_text())
        revision = path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    if "directive" not in told:
        told = {"directive": told or None}
    told.setdefault("revision", revision)
    return dict(told)


def is_distributed() -> bool:
    """Returns whether this process trains with others by ``torch.distributed``."""
    # Never imported for this: a job that does not use torch has no ranks here. PyTorch without it does not load this module.
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    return distributed is not None and bool(distributed.is_initialized())


def rank_and_world() -> tuple[int, int] | None:
    """Returns the rank of this process and how many there are, or ``None`` if it does not train with others by ``torch.distributed``."""
    if not is_distributed():
        return None
    import torch.distributed as distributed

    return int(distributed.get_rank()), int(distributed.get_world_size())


def agree(value: Any) -> Any:
    """Returns rank 0's value on every rank. A collective: every rank calls it at the same step, whatever the time."""
    if not is_distributed():
        return value
    import torch.distributed as distributed

    if distributed.get_world_size() == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def first_refusal(refusal: str | None) -> str | None:
    """Returns the refusal of the lowest rank that refuses. A collective: one rank that cannot keeps all from it."""
    if not is_distributed():
        return refusal
    import torch.distributed as distributed

    world = distributed.get_world_size()
    if world == 1:
        return refusal
    refusals: list[str | None] = [None] * world
    distributed.all_gather_object(refusals, refusal)
    return next((f"rank {rank}: {why}" for rank, why in enumerate(refusals) if why), None)
