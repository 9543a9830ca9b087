"""Freezes the first blocks of a model, so that their weights do not move at all and their backward pass is not computed.

What frameworks get wrong here is handled or refused; each refusal says why.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

#: Freezers of this process.
_freezers: weakref.WeakSet[BlockFreezer] = weakref.WeakSet()


class FreezeRefused(Exception):
    """The model cannot be frozen without harm; nothing was changed."""


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model inside DDP, DeepSpeed and torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Returns the blocks of a model from the input side: the longest list of modules of one class. Empty: it has none."""
    best: list[nn.Module] = []
    for module in unwrapped(model).modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            children = list(module)
            kinds = {type(unwrapped(child)) for child in children}
            has_weights = all(next(child.parameters(), None) is not None for child in children)
            if len(children) > max(1, len(best)) and len(kinds) == 1 and has_weights:
                best = children
    return best


def owner_of(model: nn.Module, blocks: Sequence[nn.Module]) -> nn.Module | None:
    """Returns the module that has the list of these blocks and calls them; ``None`` if none has."""
    for parent in unwrapped(model).modules():
        for child in parent.children():
            if isinstance(child, (nn.ModuleList, nn.Sequential)) and any(block is entry for block in blocks[:1] for entry in child):
                return parent
    return None


class BlockFreezer:
    """Freezes and unfreezes a prefix of blocks of one model, on every rank at the same step.

    What another freezer froze of the same blocks trains again: an earlier job was asked for it, and not this one.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        blocks: Sequence[nn.Module] | None = None,
        wrapper_refusal: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.model = model
        self._wrapper_refusal = wrapper_refusal
        self.blocks = list(blocks) if blocks is not None else find_blocks(model)
        self.frozen = 0
        for other in list(_freezers):
            if self.blocks and other.frozen > 0 and other.blocks[0] is self.blocks[0]:
                other.freeze(0)
                other.close()
        _freezers.add(self)
        #: Recompilations that torch.compile was given cause for.
        self.recompilations = 0
        #: Weights of each frozen block, and whether each one trained when it was frozen: a loop may thaw its own layers meanwhile.
        self._stopped: list[list[tuple[nn.Parameter, bool]]] = []
        #: The same of the embeddings that only the blocks use.
        self._before: list[tuple[nn.Parameter, bool]] = []
        self._boundary: Any = None
        self._watch = _ReentrantWatch(self.blocks)
        self._optimizers = _plain(optimizers)
        #: Those of the optimizers, which are there while something is frozen.
        self._hooks: list[Any] = []

    def close(self) -> None:
        """Removes every hook; what is frozen stays so."""
        self._remove_hooks()
        self._watch.close()

    def look_again(self) -> None:
        """Looks for reentrant checkpointing in the next forward pass."""
        self._watch.look_again()

    def refusal(self, layers: int) -> str | None:
        """Returns why these blocks cannot be frozen; ``None``: they can."""
        if not self.blocks:
            return "no blocks were found: name them with layers=[...]"
        if layers >= len(self.blocks):
            return f"{layers} of {len(self.blocks)} blocks: at least the last one trains"
        # All blocks can train again whatever the wrapper: that is how the job was started.
        if layers in (0, self.frozen):
            return None
        return (
            self._wrapper_refusal()
            or _refusal_of_wrapper(self.model)
            or _refusal_of_checkpointing(self.model, self._watch)
            or _refusal_of_shared_weights(self.model, self.blocks, layers, self._stopped_weights())
        )

    def empties_an_optimizer(self, layers: int) -> bool:
        """Returns whether this freeze takes the last weights of an optimizer: a gradient scaler raises in its step then."""
        stopped = {id(parameter) for block in self.blocks[:layers] for parameter in block.parameters()}
        if layers > 0:
            stopped.update(id(parameter) for parameter in self._parameters_before())
        held = self._stopped_weights()
        for optimizer in self._optimizers:
            # A loop may have stopped all weights of an optimizer itself, as loops of a GAN do in turns.
            trains = [id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad or id(p) in held]
            if trains and stopped.issuperset(trains):
                return True
        return False

    def freeze(self, layers: int) -> None:
        """Freezes exactly the first ``layers`` blocks; 0 unfreezes all. Raises :class:`FreezeRefused`."""
        refusal = self.refusal(layers)
        if refusal is not None:
            raise FreezeRefused(refusal)
        if layers == self.frozen:
            return
        for block in self.blocks[self.frozen : layers]:
            self._stopped.append(_stop(list(block.parameters()), self._stopped_weights()))
        for stopped in self._stopped[layers:]:
            _thaw(stopped)
        del self._stopped[layers:]
        if self.frozen == 0:
            self._before = _stop(self._parameters_before())
        elif layers == 0:
            _thaw(self._before)
        if self._boundary is not None:
            self._boundary.remove()
            self._boundary = None
        if layers > 0:
            # With tied embeddings the gradient would go through all frozen blocks to reach them.
            self._boundary = self.blocks[0].register_forward_pre_hook(_detach_inputs, with_kwargs=True)
        if _is_compiled(self.model):
            self.recompilations += 1
        self._remove_hooks()
        if layers > 0:
            self._hooks = [optimizer.register_step_pre_hook(self._before_step) for optimizer in self._optimizers]
        self.frozen = layers

    def frozen_parameters(self) -> list[nn.Parameter]:
        """Returns the weights that must not move now."""
        if self.frozen == 0:
            return []
        blocks = [parameter for block in self.blocks[: self.frozen] for parameter in block.parameters()]
        return [*blocks, *(parameter for parameter, trains in self._before if trains)]

    def _stopped_weights(self) -> set[int]:
        """Returns the identities of the weights that trained before they were stopped."""
        return {id(parameter) for record in (*self._stopped, self._before) for parameter, trained in record if trained}

    def _remove_hooks(self) -> None:
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()

    def _before_step(self, *_: Any) -> None:
        # A gradient of zeros, as zero_grad(set_to_none=False) leaves it, moves weights by momentum and decay.
        for parameter in self.frozen_parameters():
            parameter.grad = None

    def _parameters_before(self) -> list[nn.Parameter]:
        """Returns the embeddings that only the blocks use: behind the boundary nothing reaches them. Tied ones go on training."""
        model = unwrapped(self.model)
        uses: dict[int, int] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        owner = owner_of(model, self.blocks)
        if owner is None:
            return []
        embeddings = [child for child in owner.children() if isinstance(child, nn.Embedding)]
        own = [parameter for embedding in embeddings for parameter in embedding.parameters()]
        return [parameter for parameter in own if uses[id(parameter)] == 1]


def _stop(parameters: Sequence[nn.Parameter], held: Collection[int] = ()) -> list[tuple[nn.Parameter, bool]]:
    """Keeps weights from training; returns them with whether each one trained, before another block with it was stopped (``held``)."""
    stopped = [(parameter, parameter.requires_grad or id(parameter) in held) for parameter in parameters]
    for parameter in parameters:
        parameter.requires_grad_(False)
        parameter.grad = None
    return stopped


def _thaw(stopped: Sequence[tuple[nn.Parameter, bool]]) -> None:
    """Has weights train again that trained before they were stopped; the others are left to the loop, which may have thawed them."""
    for parameter, trained in stopped:
        if trained:
            parameter.requires_grad_(True)


def _plain(optimizers: Sequence[Any]) -> list[torch.optim.Optimizer]:
    """Returns the torch optimizers behind wrappers such as Accelerate's."""
    found = []
    for optimizer in optimizers:
        inner = optimizer
        while not isinstance(inner, torch.optim.Optimizer) or hasattr(inner, "optimizer"):
            following = getattr(inner, "optimizer", None)
            if following is None:
                break
            inner = following
        if isinstance(inner, torch.optim.Optimizer):
            found.append(inner)
    return found


def _detach_inputs(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def detached(value: Any) -> Any:
        return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value

    return tuple(detached(value) for value in args), {name: detached(value) for name, value in kwargs.items()}


def _is_compiled(model: nn.Module) -> bool:
    return any(type(module).__name__ == "OptimizedModule" for module in model.modules())


def _refusal_of_wrapper(model: nn.Module) -> str | None:
    for module in model.modules():
        kind = type(module).__name__
        if isinstance(module, nn.parallel.DistributedDataParallel):
            if getattr(module, "static_graph", False):
                return "DDP was made with static_graph=True, which does not allow other gradients: leave it out"
            if not module.find_unused_parameters:
                return "DDP waits for every gradient: wrap the model with find_unused_parameters=True"
        elif kind == "FullyShardedDataParallel" and not getattr(module, "_use_orig_params", False):
            return "FSDP flattens frozen and trained weights together: wrap the model with use_orig_params=True"
        elif kind == "DeepSpeedEngine":
            return "DeepSpeed moves weights that do not require gradients: use eadt.deepspeed.wrap"
    return None


def _refusal_of_checkpointing(model: nn.Module, watch: _ReentrantWatch) -> str | None:
    advice = "use use_reentrant=False (Hugging Face: gradient_checkpointing_kwargs={'use_reentrant': False})"
    if watch.was_seen:
        return f"reentrant gradient checkpointing gives wrong gradients behind frozen blocks: {advice}"
    for module in unwrapped(model).modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if not getattr(module, "gradient_checkpointing", False) or function is None:
            continue
        if getattr(function, "keywords", {}).get("use_reentrant", True):
            return f"reentrant gradient checkpointing gives wrong gradients behind frozen blocks: {advice}"
    return None


def _refusal_of_shared_weights(model: nn.Module, blocks: Sequence[nn.Module], layers: int, held: Collection[int]) -> str | None:
    """Weights that other parts of the model use as well would stand still there, too; also those that are stopped now (``held``)."""
    frozen = [parameter for block in blocks[:layers] for parameter in block.parameters()]
    weights = {id(parameter) for parameter in frozen if parameter.requires_grad or id(parameter) in held}
    others = {id(parameter) for block in blocks[layers:] for parameter in block.parameters()}
    # What is reached without going through the blocks; each module once.
    passed = {id(block) for block in blocks}
    waiting = [unwrapped(model)]
    while waiting:
        module = waiting.pop()
        if id(module) not in passed:
            passed.add(id(module))
            others.update(id(parameter) for parameter in module.parameters(recurse=False))
            waiting.extend(module.children())
    if weights & others:
        return f"the first {layers} blocks share weights with other parts of the model, which would not train, too"
    return None


class _ReentrantWatch:
    """Notices reentrant checkpointing, whoever does it: a block in training runs without gradients, and again in the backward pass.

    PyTorch calls a module with a hook in a slower way, so the hook goes with the first pass that has gradients.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self.was_seen = False
        self._ran_without = False
        self._watched = blocks[:1]
        self._hooks: list[Any] = []
        self.look_again()

    def look_again(self) -> None:
        """Looks at the next forward pass, unless reentrant checkpointing was seen already."""
        if not self.was_seen and not self._hooks:
            self._hooks = [block.register_forward_pre_hook(self._on_forward) for block in self._watched]

    def close(self) -> None:
        """Removes the hook, if it is there."""
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()

    def _on_forward(self, block: nn.Module, _: Any) -> None:
        if not block.training or torch.compiler.is_compiling():
            return
        if not torch.is_grad_enabled():
            self._ran_without = True
            return
        self.was_seen = self._ran_without and _in_backward()
        self._ran_without = False
        self.close()


def _in_backward() -> bool:
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1
