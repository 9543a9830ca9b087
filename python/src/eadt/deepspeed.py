"""DeepSpeed: one parameter group for each block, whose learning rate is 0 while it is frozen.

ZeRO partitions gradients and goes on moving weights whose ``requires_grad`` is switched off after ``initialize``; a learning rate of 0
moves them by nothing. It saves no computation; what is frozen is true, and no more is reported.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .accumulation import AccumulatingJob
from .freeze import find_blocks, unwrapped
from .training import Job

#: The key of a group that names which block it is; -1: everything else.
BLOCK = "eadt_block"


def parameter_groups(model: nn.Module, blocks: Any = None, **defaults: Any) -> list[dict[str, Any]]:
    """Returns groups for ``deepspeed.initialize(model_parameters=...)`` or an optimizer: the rest, then one for each block."""
    blocks = list(blocks) if blocks is not None else find_blocks(model)
    owner = {id(parameter): index for index, block in enumerate(blocks) for parameter in block.parameters()}
    groups: dict[int, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(owner.get(id(parameter), -1), []).append(parameter)
    return [{"params": groups[index], BLOCK: index, **defaults} for index in sorted(groups)]


class GroupFreezer:
    """Freezes blocks by the learning rates of their groups, before each step: a scheduler may have overwritten them."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.model = engine.module
        self.frozen = 0
        self._groups = {group[BLOCK]: group for group in engine.optimizer.param_groups if group.get(BLOCK, -1) >= 0}
        self.blocks = [self._groups[index] for index in sorted(self._groups)]
        #: The rate of each block when it was frozen, and that of the others then.
        self._rates: dict[int, tuple[float, float]] = {}
        self._step = engine.step
        engine.step = self._guarded_step

    def close(self) -> None:
        """Gives the engine its own ``step`` back."""
        self.engine.step = self._step

    def refusal(self, layers: int) -> str | None:
        """Returns why these blocks cannot be frozen; ``None``: they can."""
        if not self.blocks:
            return "the optimizer has no group for each block: make them with eadt.deepspeed.parameter_groups"
        if layers >= len(self.blocks):
            return f"{layers} of {len(self.blocks)} blocks: at least the last one trains"
        return None

    def freeze(self, layers: int) -> None:
        """Freezes exactly the first ``layers`` blocks."""
        from .freeze import FreezeRefused

        refusal = self.refusal(layers)
        if refusal is not None:
            raise FreezeRefused(refusal)
        for index, group in enumerate(self.blocks):
            if index >= layers and index < self.frozen:
                group["lr"] = self._trained_rate(*self._rates.get(index, (group["lr"], 0.0)))
            elif index < layers and index >= self.frozen:
                self._rates[index] = (group["lr"], self._others_rate())
        self.frozen = layers

    def _trained_rate(self, remembered: float, others_then: float) -> float:
        """Returns a block's rate of now: it has followed the others', since the schedule has gone on. Rates may differ by layer."""
        others = self._others_rate()
        # A warm-up begins at 0.
        return remembered * (others / others_then) if others_then > 0 else others

    def _others_rate(self) -> float:
        """Returns the highest rate of what is never frozen: what is in no block, or else the last block."""
        others = [group["lr"] for group in self.engine.optimizer.param_groups if group.get(BLOCK, -1) < 0]
        return float(max(others, default=self.blocks[-1]["lr"]))

    def _guarded_step(self, *args: Any, **kwargs: Any) -> Any:
        for group in self.blocks[: self.frozen]:
            group["lr"] = 0.0
        return self._step(*args, **kwargs)


class _EngineSteps:
    """Notices the optimizer steps of an engine, of which each has ``gradient_accumulation_steps`` micro-batches."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        #: Steps of the engine at the last micro-batch; ``None``: before the first one, since a checkpoint may be loaded until then.
        self._steps: int | None = None

    def made_step(self) -> bool:
        """Returns whether the engine made a step since the last call."""
        engine = self._engine
        accumulated = engine.gradient_accumulation_steps()
        if accumulated <= 1:
            return True
        before, self._steps = self._steps, int(engine.global_steps)
        return engine.micro_steps % accumulated == 0 if before is None else self._steps != before


def wrap(engine: Any, **options: Any) -> Job:
    """Returns a job of a DeepSpeed engine; its precision is fixed at ``initialize`` and is reported as it is.

    Call ``job.step`` after ``engine.step``, for each micro-batch, or for each optimizer step.
    """
    freezer = GroupFreezer(engine)
    blocks = find_blocks(unwrapped(engine)) or None
    made = AccumulatingJob(engine, None, made_step=_EngineSteps(engine).made_step, freezer=freezer, layers=blocks, **options)
    made.precision_refusal = (
        "DeepSpeed fixes its precision at initialize, and its checkpoints are not portable across it: restart with a conversion"
    )
    return made
