"""DeepSpeed: one parameter group for each block, whose learning rate is 0 while it is frozen.

ZeRO partitions gradients and goes on moving weights whose ``requires_grad`` is switched off after ``initialize``; a learning rate of 0
in each step moves them by nothing. It saves no computation; what is frozen is true, and no more is reported.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .accumulation import AccumulatingJob
from .freeze import find_blocks
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


class _StandStill:
    """Stands before the ``step`` of an optimizer: the first blocks have a learning rate of 0 in it, and their own again after it.

    A scheduler goes on with their own rates, and a checkpoint has them.
    """

    def __init__(self, optimizer: Any) -> None:
        self.layers = 0
        self._optimizer = optimizer
        self._step, self._was_attribute = optimizer.step, "step" in vars(optimizer)
        # Schedulers of PyTorch look for a mark on it.
        self.__dict__.update(getattr(optimizer.step, "__dict__", {}))
        optimizer.step = self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        # Those of now: a checkpoint that is loaded brings others.
        groups = _blocks_of(self._optimizer)[: self.layers]
        rates = [group["lr"] for group in groups]
        try:
            for group in groups:
                group["lr"] = 0.0
            return self._step(*arguments, **options)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def remove(self) -> None:
        """Gives the optimizer its own ``step`` back, unless other code replaced it meanwhile."""
        self.layers = 0
        if vars(self._optimizer).get("step") is not self:
            return
        if self._was_attribute:
            self._optimizer.step = self._step
        else:
            del self._optimizer.step


def _blocks_of(optimizer: Any) -> list[dict[str, Any]]:
    """Returns the groups of the blocks, in their order."""
    groups = {group[BLOCK]: group for group in optimizer.param_groups if group.get(BLOCK, -1) >= 0}
    return [groups[index] for index in sorted(groups)]


class GroupFreezer:
    """Freezes blocks by the learning rates of their groups, in each step."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.model = engine.module
        # What an earlier job left.
        earlier = vars(engine.optimizer).get("step")
        if isinstance(earlier, _StandStill):
            earlier.remove()
        self._still: _StandStill | None = None

    @property
    def frozen(self) -> int:
        """Blocks that are frozen now."""
        return 0 if self._still is None else self._still.layers

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The groups of the blocks."""
        return _blocks_of(self.engine.optimizer)

    def close(self) -> None:
        """Has all blocks train again, and gives the optimizer its own ``step`` back."""
        still, self._still = self._still, None
        if still is not None:
            still.remove()

    def refusal(self, layers: int) -> str | None:
        """Returns why these blocks cannot be frozen; ``None``: they can."""
        blocks = len(self.blocks)
        if blocks == 0:
            return "the optimizer has no group for each block: make them with eadt.deepspeed.parameter_groups"
        if layers >= blocks:
            return f"{layers} of {blocks} blocks: at least the last one trains"
        return None

    def freeze(self, layers: int) -> None:
        """Freezes exactly the first ``layers`` blocks."""
        from .freeze import FreezeRefused

        refusal = self.refusal(layers)
        if refusal is not None:
            raise FreezeRefused(refusal)
        if layers == 0:
            self.close()
            return
        if self._still is None:
            self._still = _StandStill(self.engine.optimizer)
        self._still.layers = layers


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


def wrap(engine: Any, *, layers: Any = "auto", **options: Any) -> Job:
    """Returns a job of a DeepSpeed engine; its precision is fixed at ``initialize`` and is reported as it is.

    Call ``job.step`` after ``engine.step``, for each micro-batch, or for each optimizer step.
    ``layers``: the blocks that ``parameter_groups`` was given; ``"auto"``: those that it finds; ``None``: no block may be frozen.
    """
    freezer = None if layers is None else GroupFreezer(engine)
    # Ranks of tensor, pipeline and sequence parallelism share their samples.
    ranks = getattr(engine, "dp_world_size", None) or None
    made = AccumulatingJob(
        engine, None, made_step=_EngineSteps(engine).made_step, freezer=freezer, layers=layers, **{"data_ranks": ranks, **options}
    )
    made.precision_refusal = (
        "DeepSpeed fixes its precision at initialize, and its checkpoints are not portable across it: restart with a conversion"
    )
    return made
