"""How much each block still changes: 1 - CKA between its outputs now and at the last snapshot, on a kept batch.

Gradient norms fall with the learning rate and show little; linear CKA to a snapshot of the same block is what stayed within a
loss of 2 % where it was compared (docs/use/training.md).
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .forward import Hook

#: Rows of a block's output that are compared: enough for CKA, little to keep.
MAX_ROWS = 512
#: What the numbers begin with that a model draws in these passes.
SEED = 0


def _products(rows: torch.Tensor) -> torch.Tensor:
    """Returns the products of all pairs of centred rows: with few rows far less to keep and to compute with than pairs of columns."""
    centred = rows.double() - rows.double().mean(0)
    return centred @ centred.T


def _alignment(first: torch.Tensor, second: torch.Tensor) -> float:
    """Returns the linear CKA of two matrices by their products, 0 to 1; not a number if one has values that are none."""
    own = float(first.pow(2).sum() * second.pow(2).sum()) ** 0.5
    return float((first * second).sum()) / own if own != 0 else 1.0


class PlasticityMeter:
    """Compares the blocks' outputs on one kept batch with those at the snapshot before."""

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        self._model, self._blocks = model, list(blocks)
        self._batch: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._snapshot: list[torch.Tensor] | None = None
        self._hook: Any = None

    def keep_batch(self, *args: Any, **kwargs: Any) -> None:
        """Keeps the inputs of one forward pass, on which blocks are compared from now on."""
        # A loader may fill the same memory with the next batch.
        self._batch = tuple(_own(value) for value in args), {name: _own(value) for name, value in kwargs.items()}
        self._snapshot = None

    def keep_next_batch(self) -> None:
        """Keeps the inputs of the next forward pass in training."""
        self.close()
        self._hook = self._model.register_forward_pre_hook(Hook(self._on_forward), with_kwargs=True)

    def close(self) -> None:
        """Removes the hook, if it is there."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training and not torch.compiler.is_compiling():
            self.close()
            self.keep_batch(*args, **kwargs)

    def measure(self) -> list[float | None] | None:
        """Returns the plasticity of each block since the measurement before; ``None`` the first time, or without a batch.

        Runs one forward pass without gradients: with sharded weights every rank must call it at the same step. A block whose outputs are
        no numbers has none.
        """
        if self._batch is None:
            return None
        products = self._products_of_outputs()
        before, self._snapshot = self._snapshot, products
        if before is None:
            return None
        alignments = [_alignment(now, then) for now, then in zip(products, before, strict=True)]
        return [max(0.0, 1.0 - alignment) if math.isfinite(alignment) else None for alignment in alignments]

    def _products_of_outputs(self) -> list[torch.Tensor]:
        args, kwargs = self._batch or ((), {})
        products: list[torch.Tensor] = []

        def keep(_module: nn.Module, _args: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, (tuple, list)) else output
            products.append(_products(tensor.detach().reshape(-1, tensor.shape[-1])[:MAX_ROWS].float().cpu()))

        hooks = [block.register_forward_hook(keep) for block in self._blocks]
        # Some modules may be kept from training on purpose.
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        try:
            with torch.no_grad(), _own_draws(self._model):
                self._model(*args, **kwargs)
        finally:
            for module, is_training in modes:
                module.training = is_training
            for hook in hooks:
                hook.remove()
        return products


@contextlib.contextmanager
def _own_draws(model: nn.Module) -> Iterator[None]:
    """Has a pass draw the same numbers each time, from PyTorch's, Python's and NumPy's generators, which go on afterwards as before."""
    devices = sorted({weight.device.index for weight in model.parameters() if weight.device.type == "cuda"})
    numpy = sys.modules.get("numpy")
    drawn, of_numpy = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            torch.default_generator.manual_seed(SEED)
            for device in devices:
                torch.cuda.default_generators[device].manual_seed(SEED)
            random.seed(SEED)
            if numpy is not None:
                numpy.random.seed(SEED)
            yield
    finally:
        random.setstate(drawn)
        if numpy is not None:
            numpy.random.set_state(of_numpy)


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
