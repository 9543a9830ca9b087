"""How much each block still changes: 1 - CKA between its outputs now and at the last snapshot, on a kept batch.

Gradient norms fall with the learning rate and show little; linear CKA to a snapshot of the same block is what stayed within a
loss of 2 % where it was compared (docs/use/training.md).
"""

from __future__ import annotations

import contextlib
import copy
import math
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from .blocks import is_sharded
from .forward import Hook, is_exported

#: Rows of a block's output that are compared: enough for CKA, little to keep.
MAX_ROWS = 512
#: What the numbers begin with that a model draws in these passes.
SEED = 0
COLLECTIVE: Final = (
    "ranks exchange weights in its pass (FSDP, DeepSpeed), and would wait for one where it fails: give it in job.step(plasticity=...)"
)
PARTITIONED: Final = "ZeRO-3 counts passes in the modules, which a pass more would change: give it in job.step(plasticity=...)"
#: Names of attributes that a reason lists, at most.
NAMES_LISTED = 3
#: Classes that exchange something between ranks in a pass.
REDUCING: Final = frozenset({"DistributedDataParallel", "DeepSpeedEngine"})
#: Attributes of modules that are PyTorch's own.
PYTORCHS: Final = frozenset({*vars(nn.Module()), "_compiled_call_impl"}) | {"training"}
#: Types of attributes that are copied, and of those whose values are compared.
CONTAINERS: Final = (list, dict, set, deque, OrderedDict)
PLAIN: Final = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)


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
        # DDP exchanges buffers in each pass, of which a rank alone may fail.
        self._model, self._blocks = _inside_ddp(model), list(blocks)
        #: What is called with the inputs of a pass: no hook inside of compiled code gets them.
        self._called = model if type(model).__name__ == "OptimizedModule" else self._model
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
        self._hook = self._called.register_forward_pre_hook(Hook(self._on_forward), with_kwargs=True)

    def close(self) -> None:
        """Removes the hook, if it is there."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training and not torch.compiler.is_compiling() and not is_exported():
            self.close()
            self.keep_batch(*args, **kwargs)

    def refusal(self, ranks: int = 1) -> str | None:
        """Returns why the pass cannot be made: a failure in it must not have other ranks wait in its collectives."""
        if any(hasattr(weight, "ds_id") for weight in self._model.parameters()):
            return PARTITIONED
        has_collectives = is_sharded(self._model) or any(type(part).__name__ in REDUCING for part in self._model.modules())
        return COLLECTIVE if ranks > 1 and has_collectives else None

    def measure(self) -> list[float | None] | None:
        """Returns the plasticity of each block since the measurement before; ``None`` the first time, or without a batch.

        Runs one forward pass without gradients: with sharded weights every rank must call it at the same step. A block whose outputs are
        no numbers has none. Raises ``ValueError`` if the pass changes what the model keeps, which is put back.
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
        kept: _KeptState | None = None
        changed: list[str] = []
        try:
            kept = _KeptState(self._model)
            with torch.no_grad(), _own_draws(self._model):
                self._model(*args, **kwargs)
        finally:
            for module, is_training in modes:
                module.training = is_training
            for hook in hooks:
                hook.remove()
            if kept is not None:
                changed = kept.put_back()
        if changed:
            names = ", ".join(changed[:NAMES_LISTED]) + (f" and {len(changed) - NAMES_LISTED} more" if changed[NAMES_LISTED:] else "")
            raise ValueError(f"a pass changes what the model keeps, also in the mode of evaluation: {names}")
        return products


def _inside_ddp(model: nn.Module) -> nn.Module:
    """Returns the model inside DDP, also if DDP is compiled itself."""
    inner = model
    while type(inner).__name__ == "OptimizedModule":
        inner = inner._orig_mod
    return _inside_ddp(inner.module) if type(inner).__name__ == "DistributedDataParallel" else model


class _Kept(NamedTuple):
    """The attributes or the buffers of one module before a pass."""

    name: str
    module: nn.Module
    #: Where they are: the dictionary of the module's attributes, or its buffers.
    place: Any
    before: dict[str, Any]
    #: Copies of those that may change in place, and how often tensors were changed.
    copies: dict[str, Any]
    versions: dict[str, int | None]

    @classmethod
    def of(cls, name: str, module: nn.Module, place: Any) -> _Kept:
        # Not PyTorch's own: weights, parts and hooks.
        before = {key: value for key, value in place.items() if key not in PYTORCHS}
        copies = {key: _copy(value) for key, value in before.items()}
        return cls(name, module, place, before, copies, {key: _version(value) for key, value in before.items()})

    def put_back(self) -> list[str]:
        """Gives the module all of it back; returns the names of what was changed, and of what cannot be put back."""
        is_attribute, now, changed = self.place is vars(self.module), dict(self.place.items()), []
        for key in [*self.before, *(key for key in now if key not in self.before and key not in PYTORCHS)]:
            is_same = False
            # One that cannot be put back keeps no other from it.
            with contextlib.suppress(Exception):
                is_same = self._put_back_one(key, now, is_attribute)
            if not is_same:
                changed.append(f"{self.name}.{key}".lstrip("."))
        return changed

    def _put_back_one(self, key: str, now: dict[str, Any], is_attribute: bool) -> bool:
        """Puts one back; returns whether the pass left it as it was, or only bound an attribute to what it computed."""
        if key not in self.before:
            del self.place[key]
            return is_attribute and _is_computed(now[key])
        value, kept = self.before[key], self.copies[key]
        if now.get(key) is not value:
            # The buffers of a scripted module are no dictionary.
            if isinstance(self.place, dict):
                self.place[key] = value
            else:
                setattr(self.module, key, value)
        if not _equal(value, kept, self.versions[key]):
            _put_back(value, kept)
            return False
        return _equal(now.get(key), value) or (is_attribute and _is_computed(now.get(key)))


class _KeptState:
    """What the modules of a model keep besides their weights: buffers, tensors, lists and other attributes.

    What is inside of an attribute's own object, or of a list in a list, is not seen, nor are attributes of scripted modules.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[_Kept] = []
        for name, module in model.named_modules():
            if type(module).__name__ == "OptimizedModule":
                continue
            if not isinstance(module, torch.jit.ScriptModule):
                self._kept.append(_Kept.of(name, module, vars(module)))
            self._kept.append(_Kept.of(name, module, module._buffers))

    def put_back(self) -> list[str]:
        """Gives the modules all of it back; returns the names of what the pass changed, but for attributes bound to what it computed."""
        return [key for kept in self._kept for key in kept.put_back()]


def _is_computed(value: Any) -> bool:
    """Returns whether a pass may leave this in an attribute for the loop: a loss, attentions, a weight that it computes anew."""
    return value is None or isinstance(value, torch.Tensor) or (type(value) in (tuple, list) and all(map(_is_computed, value)))


def _version(value: Any) -> int | None:
    """Returns how often a tensor was changed in place; ``None`` for anything else, and if it does not count that."""
    with contextlib.suppress(Exception):
        return int(value._version) if isinstance(value, torch.Tensor) else None
    return None


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.copy(value) if type(value) in CONTAINERS else value


def _equal(value: Any, other: Any, version: int | None = None) -> bool:
    """Returns whether two values are equal. Of a tensor that cannot be compared, ``version`` shows whether it was changed since."""
    if value is other:
        return True
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        with contextlib.suppress(Exception):
            if (value.shape, value.dtype, value.device) == (other.shape, other.dtype, other.device):
                # What is no number is another one than itself.
                return bool(((value == other) | ((value != value) & (other != other))).all())
        return version is not None and _version(value) == version
    if type(value) is not type(other):
        return False
    if isinstance(value, set):
        return bool(value == other)
    if type(value) in CONTAINERS:
        value, other = (tuple(one.items() if hasattr(one, "items") else one) for one in (value, other))
    if isinstance(value, tuple):
        return len(value) == len(other) and all(_equal(one, two) for one, two in zip(value, other, strict=True))
    return isinstance(value, PLAIN) and value == other


def _put_back(value: Any, kept: Any) -> None:
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.copy_(kept)
    elif isinstance(value, (list, deque)):
        value.clear()
        value.extend(kept)
    else:
        value.clear()
        value.update(kept)


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
