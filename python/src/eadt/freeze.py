"""Freezes the first blocks of a model, so that their weights do not move at all and their backward pass is not computed.

What frameworks get wrong here is handled or refused; each refusal gives its reason.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import torch
from torch import nn

from .blocks import embedding_weights, find_blocks, is_called, owner_of, size_of, unwrapped
from .forward import PassWatch, View, is_compiled

__all__ = ["BlockFreezer", "FreezeRefused", "find_blocks", "owner_of", "unwrapped"]

#: Names of weights that a reason lists, at most.
NAMES_LISTED: Final = 3

#: Freezers of this process.
_freezers: weakref.WeakSet[BlockFreezer] = weakref.WeakSet()


class FreezeRefused(Exception):
    """The model cannot be frozen without harm; nothing was changed."""


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
        #: The same of what is in front of the blocks, and works for nothing else.
        self._before: list[tuple[nn.Parameter, bool]] = []
        self._boundary: Any = None
        self._watch = PassWatch(model, self.blocks)
        #: Weights that got a gradient since the blocks were frozen, while that is checked.
        self._receipts: _Receipts | None = None
        #: Of a model of which no pass can be seen: what may be in front of the blocks.
        self._unsure: list[nn.Parameter] = []
        self._optimizers = _plain(optimizers)
        #: Those of the optimizers, which are there while something is frozen.
        self._hooks: list[Any] = []

    def close(self) -> None:
        """Removes every hook; what is frozen stays so."""
        self._remove_hooks()
        self._end_receipts()
        self._watch.close()

    def look_again(self, whole: bool = False) -> None:
        """Looks for reentrant checkpointing in the next forward pass; if ``whole``, at how blocks are called and what trains, too."""
        # A pass with frozen blocks shows less than the one before the freeze did.
        self._watch.look_again(whole and self.frozen == 0)

    def refusal(self, layers: int) -> str | None:
        """Returns why these blocks cannot be frozen; ``None``: they can."""
        if not self.blocks:
            return "no blocks were found: name them with layers=[...]"
        if layers >= len(self.blocks):
            return f"{layers} of {len(self.blocks)} blocks: at least the last one trains"
        uncalled = next((block for block in self.blocks if not is_called(block)), None)
        if uncalled is not None:
            return f"a block is a {type(uncalled).__name__}, which is never called itself: name modules that are, with layers=[...]"
        # All blocks can train again whatever the wrapper: that is how the job was started.
        if layers in (0, self.frozen):
            return None
        return (
            self._wrapper_refusal()
            or _refusal_of_wrapper(self.model)
            or _refusal_of_checkpointing(self.model, self._watch)
            or _refusal_of_shared_weights(self.model, self.blocks, layers, self._stopped_weights())
            or (None if self._watch.view is None else self._watch.view.refusal)
            or (self._refusal_of_front() if self.frozen == 0 else None)
            or self._refusal_of_the_rest(layers)
        )

    def _refusal_of_front(self) -> str | None:
        """Refuses if a freeze would stop more in front of the blocks than a small front end, or a part of its gradients."""
        view = self._watch.view
        front = self._front_by_order() if view is None else list(view.front.values())
        embeddings = embedding_weights(unwrapped(self.model))
        front = [parameter for parameter in front if id(parameter) not in embeddings]
        if view is not None:
            partly = [parameter for parameter in front if id(parameter) in view.reached]
            if partly:
                reason = "weights in front of the blocks, which other parts use as well, would train on a part of their gradients"
                return f"{reason}: {self._named(partly)}"
        kinds = {type(unwrapped(block)) for block in self.blocks}
        inside = {id(module) for block in self.blocks for module in block.modules()}
        stopped = {id(parameter) for parameter in front}
        for module in unwrapped(self.model).modules():
            if type(module) in kinds and id(module) not in inside and stopped.intersection(id(weight) for weight in module.parameters()):
                advice = "name all of them with layers=[...]"
                return f"blocks of the same kind in front of these would stop as well: {advice} ({self._named(front)})"
        # Each rank has another part of the weights.
        if any(type(module).__name__ == "FullyShardedDataParallel" for module in self.model.modules()):
            return None
        block_size = sum(size_of(parameter) for block in self.blocks for parameter in block.parameters()) / len(self.blocks)
        if sum(size_of(parameter) for parameter in front) > block_size:
            advice = "name them with layers=[...], or keep them from training"
            return f"more weights than a block has are in front of the blocks, and would stop as well: {advice} ({self._named(front)})"
        return None

    def _refusal_of_the_rest(self, layers: int) -> str | None:
        """Refuses if nothing would be left of which a gradient is wanted: the backward pass of a loop raises then."""
        view, held = self._watch.view, self._stopped_weights()
        frozen = {id(parameter) for block in self.blocks[:layers] for parameter in block.parameters()}
        behind = (
            [parameter for block in self.blocks[layers:] for parameter in block.parameters()]
            if view is None
            else [parameter for parameter in self.model.parameters() if id(parameter) in view.reached]
        )
        if any(id(parameter) not in frozen and (parameter.requires_grad or id(parameter) in held) for parameter in behind):
            return None
        return f"nothing would be left to train behind the first {layers} blocks"

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
        # Before a compiled model is compiled once more: its hooks would stay.
        self._watch.close()
        self._end_receipts()
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
            self._boundary = self.blocks[0].register_forward_pre_hook(_detacher(self._watch.view), with_kwargs=True)
        if self._watch.was_compiled or is_compiled(self.model):
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

    def stopped_in_front(self) -> str | None:
        """Returns the names of weights that are frozen with the blocks, in front of them; ``None``: there are none."""
        before = [parameter for parameter, trains in self._before if trains]
        return self._named(before) if self.frozen > 0 and before else None

    def begin_check(self) -> None:
        """Notes from now on which weights get a gradient. Call it after a freeze, and ``check`` after each step."""
        self._end_receipts()
        if self.frozen > 0:
            self._unsure = self._front_by_order() if self._watch.view is None else []
            self._receipts = _Receipts([parameter for parameter in self.model.parameters() if parameter.requires_grad])

    def check(self, is_last: bool) -> tuple[bool, str | None]:
        """Returns whether all blocks that should train got a gradient since ``begin_check``, and why the freeze must be taken back.

        A block may be left out of a pass: it is only missing if the step ``is_last``.
        """
        if self._receipts is None:
            return True, None
        received, view = self._receipts.received, self._watch.view
        if not received:
            # Some wrappers hand gradients over in another way.
            missing = f"it cannot be seen whether weights in front of the blocks still train: {self._named(self._unsure)}"
            return not self._unsure, missing if self._unsure and is_last else None
        partly = [parameter for parameter in self._unsure if id(parameter) in received]
        if partly:
            reason = "weights in front of the blocks, which other parts use as well, trained on a part of their gradients"
            return False, f"{reason}: {self._named(partly)}"
        for index, block in enumerate(self.blocks[self.frozen :], self.frozen):
            weights = {id(weight) for weight in block.parameters() if weight.requires_grad}
            if view is not None:
                weights &= view.reached
            if weights and not weights & received:
                return False, f"block {index} got no gradient any more" if is_last else None
        return True, None

    def end_check(self) -> None:
        """Keeps weights in front of the blocks, which got no gradient, from training; on every rank at the same step."""
        unsure = self._unsure
        self._end_receipts()
        if self.frozen > 0 and unsure:
            self._before += _stop(unsure)
            if self._watch.was_compiled or is_compiled(self.model):
                self.recompilations += 1

    def _end_receipts(self) -> None:
        receipts, self._receipts = self._receipts, None
        self._unsure = []
        if receipts is not None:
            receipts.close()

    def _named(self, parameters: Sequence[nn.Parameter]) -> str:
        """Returns the names of the first weights of a few, and how many there are."""
        wanted = {id(parameter) for parameter in parameters}
        names = [name for name, parameter in unwrapped(self.model).named_parameters() if id(parameter) in wanted]
        return ", ".join(names[:NAMES_LISTED]) + (f" and {len(names) - NAMES_LISTED} more weights" if len(names) > NAMES_LISTED else "")

    def _front_by_order(self) -> list[nn.Parameter]:
        """Returns the trainable weights that a model lists before its blocks, but for embeddings: most are in front of them."""
        model = unwrapped(self.model)
        embeddings = embedding_weights(model)
        inside = {id(parameter) for block in self.blocks for parameter in block.parameters()}
        front: list[nn.Parameter] = []
        for parameter in model.parameters():
            if id(parameter) in inside:
                return front
            if parameter.requires_grad and id(parameter) not in embeddings:
                front.append(parameter)
        # The blocks are not inside of the model.
        return []

    def _stopped_weights(self) -> set[int]:
        """Returns the identities of the weights that trained before they were stopped."""
        return {id(parameter) for record in (*self._stopped, self._before) for parameter, trained in record if trained}

    def _remove_hooks(self) -> None:
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()

    def _before_step(self, *_: Any) -> None:
        # A gradient of zeros, as zero_grad(set_to_none=False) leaves it, moves weights by momentum and decay.
        received = self._receipts.received if self._receipts is not None else set()
        for parameter in (*self.frozen_parameters(), *(unsure for unsure in self._unsure if id(unsure) not in received)):
            parameter.grad = None

    def _parameters_before(self) -> list[nn.Parameter]:
        """Returns the weights that no gradient reaches if the inputs of the blocks are detached. Tied embeddings go on training."""
        view = self._watch.view
        if view is not None:
            return [parameter for identity, parameter in view.front.items() if identity not in view.reached]
        # No pass was seen: embeddings beside the blocks, but for those of relative positions, which each block uses.
        model = unwrapped(self.model)
        uses: dict[int, int] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        owner = owner_of(model, self.blocks)
        if owner is None:
            return []
        embeddings = [child for name, child in owner.named_children() if isinstance(child, nn.Embedding) and "rel" not in name]
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


class _Receipts:
    """Notes which weights get a gradient, by hooks on them."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.received: set[int] = set()
        self._hooks: list[Any] = []
        for parameter in parameters:
            # Weights of some wrappers take no hook.
            with contextlib.suppress(Exception):
                self._hooks.append(parameter.register_post_accumulate_grad_hook(lambda weight: self.received.add(id(weight))))

    def close(self) -> None:
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()


def _detacher(view: View | None) -> Callable[..., Any]:
    """Returns the hook that detaches the inputs of a block, but for those that later blocks take as well: these lead to their gradients."""
    if view is None or not view.shared_inputs:
        return _detach_inputs
    shared = view.shared_inputs

    def detach(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        detached, named = _detach_inputs(module, args, kwargs)
        kept = tuple(args[place] if place in shared else value for place, value in enumerate(detached))
        return kept, {name: kwargs[name] if name in shared else value for name, value in named.items()}

    return detach


def _detach_inputs(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def detached(value: Any) -> Any:
        return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value

    return tuple(detached(value) for value in args), {name: detached(value) for name, value in kwargs.items()}


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


def _refusal_of_checkpointing(model: nn.Module, watch: PassWatch) -> str | None:
    advice = "use use_reentrant=False (Hugging Face: gradient_checkpointing_kwargs={'use_reentrant': False})"
    if watch.was_reentrant:
        return f"reentrant gradient checkpointing gives wrong gradients behind frozen blocks: {advice}"
    for module in unwrapped(model).modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if not getattr(module, "gradient_checkpointing", False) or function is None:
            continue
        if getattr(function, "keywords", {}).get("use_reentrant", True):
            return f"reentrant gradient checkpointing gives wrong gradients behind frozen blocks: {advice}"
    return None


def _refusal_of_shared_weights(model: nn.Module, blocks: Sequence[nn.Module], layers: int, held: Collection[int]) -> str | None:
    """Weights that other parts of the model use as well would be frozen there, too; also those that are stopped now (``held``)."""
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
