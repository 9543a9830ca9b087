"""The samples of a batch, where a framework does not report them, and which ranks share them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.nn.utils.rnn import PackedSequence


def batch_size(batch: Any) -> int | None:
    """Returns the samples of a batch: the length of its first tensor, or of its first list of samples; ``None`` if it has none.

    A list of samples has texts, figures, or mappings or data classes of one kind.
    """
    for part in _parts(batch):
        if isinstance(part, PackedSequence):
            return int(part.batch_sizes[0])
        if len(getattr(part, "shape", ())) > 0:
            return int(part.shape[0])
    listed = next((part for part in _parts(batch) if isinstance(part, (list, tuple)) and part), None)
    return None if listed is None else len(listed)


def ranks_with_samples(world: int, parallelism: Any) -> int:
    """Returns how many ranks have samples of their own: those of tensor, context and sequence parallelism share theirs.

    ``parallelism``: Accelerate's ``ParallelismConfig``, or ``None``.
    """
    sharing = math.prod(getattr(parallelism, name, None) or 1 for name in ("tp_size", "cp_size", "sp_size"))
    return max(1, int(world // sharing))


def _parts(batch: Any) -> Iterator[Any]:
    """Yields what is inside a batch, in its order, and lists of samples as one."""
    if isinstance(batch, Mapping):
        inside = list(batch.values())
    elif _is_data_class(batch):
        inside = [getattr(batch, field.name, None) for field in dataclasses.fields(batch)]
    elif isinstance(batch, (list, tuple)) and not isinstance(batch, PackedSequence) and not _lists_samples(batch):
        inside = list(batch)
    else:
        yield batch
        return
    for entry in inside:
        yield from _parts(entry)


def _lists_samples(entries: Sequence[Any]) -> bool:
    """Returns whether each entry is a sample: texts and figures are, and mappings with the same keys or data classes of one type.

    Mappings with different keys are inputs and targets, as a loader collates them.
    """
    if all(isinstance(entry, (str, bytes, int, float)) for entry in entries):
        return True
    if all(isinstance(entry, Mapping) for entry in entries):
        return all(entry.keys() == entries[0].keys() for entry in entries)
    return all(_is_data_class(entry) and type(entry) is type(entries[0]) for entry in entries)


def _is_data_class(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
