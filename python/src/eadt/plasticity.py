"""How much each block still changes: 1 - CKA between its outputs now and at the last snapshot, on a kept batch.

Gradient norms fall with the learning rate and say little; linear CKA to a snapshot of the same block is what stayed within a
loss of 2 % where it was compared (docs/use/training.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

#: Rows of a block's output that are compared: enough for CKA, little to keep.
MAX_ROWS = 512


def linear_cka(first: torch.Tensor, second: torch.Tensor) -> float:
    """Returns the linear centred kernel alignment of two matrices of as many rows, 0 to 1."""
    a = first.double() - first.double().mean(0)
    b = second.double() - second.double().mean(0)
    between = (a.T @ b).pow(2).sum()
    own = ((a.T @ a).pow(2).sum() * (b.T @ b).pow(2).sum()).sqrt()
    return float(between / own) if own > 0 else 1.0


class PlasticityMeter:
    """Compares the blocks' outputs on one kept batch with those at the snapshot before."""

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        self._model, self._blocks = model, list(blocks)
        self._batch: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._snapshot: list[torch.Tensor] | None = None

    def keep_batch(self, *args: Any, **kwargs: Any) -> None:
        """Keeps the inputs of one forward pass, on which blocks are compared from now on."""
        self._batch, self._snapshot = (args, kwargs), None

    def measure(self) -> list[float | None] | None:
        """Returns the plasticity of each block since the measurement before; ``None`` the first time, or without a batch.

        Runs one forward pass without gradients: with sharded weights every rank must call it at the same step.
        """
        if self._batch is None:
            return None
        outputs = self._outputs()
        before, self._snapshot = self._snapshot, outputs
        if before is None:
            return None
        return [max(0.0, 1.0 - linear_cka(now, then)) for now, then in zip(outputs, before, strict=True)]

    def _outputs(self) -> list[torch.Tensor]:
        args, kwargs = self._batch or ((), {})
        outputs: list[torch.Tensor] = []

        def keep(_module: nn.Module, _args: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, (tuple, list)) else output
            outputs.append(tensor.detach().reshape(-1, tensor.shape[-1])[:MAX_ROWS].float().cpu())

        hooks = [block.register_forward_hook(keep) for block in self._blocks]
        was_training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                self._model(*args, **kwargs)
        finally:
            self._model.train(was_training)
            for hook in hooks:
                hook.remove()
        return outputs
