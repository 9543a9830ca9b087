"""What a job is asked to do, and how all ranks learn it at the same step."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .events import event_precision, nearest

#: The most characters of a file with a token or a directive.
MAX_CHARACTERS = 1 << 20
#: What a directive asks for.
ASKED = ("precision", "frozen_prefix_layers", "checkpoint_now")
#: By which variables launchers name how many ranks there are, and which one this is.
WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
RANKS = ("EADT_RANK", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK")
#: Keys of a file with a directive alone, and of one with a revision beside it.
DIRECTIVE_KEYS = frozenset({*ASKED, "decision_id", "time", "workload", "revision"})
ANSWER_KEYS = frozenset({"directive", "revision", "workload"})
#: Why a rank takes a freeze back that may have received these gradients from another rank, which has the cause.
PASSED = "weights in front of the blocks get gradients by another way in later steps"


@dataclass(frozen=True)
class Directive:
    """A whole request: what it does not name is as the job was started with."""

    decision_id: str
    precision: str | None = None
    frozen_prefix_layers: int | None = None
    checkpoint_now: bool = False


def parse_answer(answer: dict[str, Any]) -> tuple[int, Directive | None]:
    """Reads ``{"revision", "directive"}`` as the collector answers; raises ``ValueError`` if it is none."""
    revision, body = answer.get("revision"), answer.get("directive")
    if not isinstance(revision, int) or isinstance(revision, bool):
        raise ValueError("a directive has no revision")
    if body is None:
        return revision, None
    if not isinstance(body, dict) or not body.get("decision_id"):
        raise ValueError("a directive has no decision_id")
    layers, precision, checkpoint_now = (body.get(name) for name in ("frozen_prefix_layers", "precision", "checkpoint_now"))
    if layers is not None and (not isinstance(layers, int) or isinstance(layers, bool) or layers < 0):
        raise ValueError(f"frozen_prefix_layers is no number of blocks: {layers!r}")
    # The text "false" is true in Python.
    if checkpoint_now not in (None, False, True):
        raise ValueError(f"checkpoint_now is {checkpoint_now!r}: give true or false")
    directive = Directive(
        decision_id=str(body["decision_id"]),
        precision=None if precision is None else event_precision(precision),
        frozen_prefix_layers=layers,
        checkpoint_now=bool(checkpoint_now),
    )
    return revision, directive


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns what a small file holds, without a byte order mark; of a device or another file without an end it reads no more than that."""
    with open(path, encoding="utf-8-sig") as file:
        text = file.read(MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has more than {MAX_CHARACTERS} characters: check that this is the right file")
    return text


def read_file(path: Path) -> dict[str, Any]:
    """Returns the answer that a file holds; its revision is another one if its text or the time of its last change is.

    The file is written by hand: raises ``ValueError`` if a key does not exist, or if it requests nothing.
    """
    text = read_text(path)
    answer = json.loads(text)
    # A link may be moved to another file of the same time, and a file be changed twice within one tick of its clock.
    digest = hashlib.sha256(f"{path.stat().st_mtime_ns} {text}".encode()).digest()
    if not isinstance(answer, dict):
        raise ValueError("a directive is no JSON object")
    if "directive" in answer:
        _check_keys(answer, ANSWER_KEYS)
    else:
        answer = {"directive": answer or None}
    answer["revision"] = int.from_bytes(digest[:8], "big")
    body = answer["directive"]
    if isinstance(body, dict):
        _check_keys(body, DIRECTIVE_KEYS)
        if body.get("precision") is None and body.get("frozen_prefix_layers") is None and not body.get("checkpoint_now"):
            raise ValueError(f"it asks for nothing: give {', '.join(ASKED[:-1])} or {ASKED[-1]}, or {{}} to withdraw what was asked")
    return dict(answer)


def _check_keys(given: dict[str, Any], keys: frozenset[str]) -> None:
    """Raises ``ValueError`` if there is another key, and names the nearest one."""
    for name in given:
        if name not in keys:
            raise ValueError(f"there is no key {name}{nearest(name, keys)}")


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


def lonely_ranks() -> str | None:
    """Returns what names this process one of several that do not train together by ``torch.distributed``; ``None``: nothing does."""
    if is_distributed():
        return None
    for names, least in ((WORLD_SIZES, 2), (RANKS, 1)):
        for name in names:
            value = os.environ.get(name, "")
            if value.isdigit() and int(value) >= least:
                return f"{name}={value}"
    return None


def local_world() -> int | None:
    """Returns how many of the ranks are on this machine, as launchers report it; ``None``: not known."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    nodes, tasks = os.environ.get("SLURM_STEP_NUM_NODES", ""), os.environ.get("SLURM_STEP_NUM_TASKS", "")
    return int(tasks) // int(nodes) if nodes.isdigit() and tasks.isdigit() and int(nodes) > 0 else None


def _on(device: Any) -> Any:
    """Makes a GPU the current one: NCCL sends objects by it, and a job that names its GPU itself may have left it at the first."""
    if device is None:
        return contextlib.nullcontext()
    import torch

    return torch.cuda.device(device)


def gather(value: Any, device: Any = None) -> list[Any]:
    """Returns the values of all ranks, in their order. A collective: every rank calls it at the same step."""
    if not is_distributed():
        return [value]
    import torch.distributed as distributed

    world = distributed.get_world_size()
    if world == 1:
        return [value]
    values = [None] * world
    with _on(device):
        distributed.all_gather_object(values, value)
    return values


def first_refusal(refusals: list[str | None]) -> str | None:
    """Returns the refusal of the lowest rank that refuses: one rank that cannot keeps all from it. ``PASSED`` comes after all others."""
    if len(refusals) == 1:
        return refusals[0]
    reasons = [(why.startswith(PASSED), rank, why) for rank, why in enumerate(refusals) if why]
    if not reasons:
        return None
    _, rank, why = min(reasons)
    return f"rank {rank}: {why}"
