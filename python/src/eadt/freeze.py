"""Freezes the first blocks of a model, so that their weights do not move at all and their backward pass is not computed.

What frameworks get wrong here is handled or refused; each refusal gives its reason.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from .blocks import embedding_weights, find_blocks, is_called, is_sharded, owner_of, size_of, tied_embeddings, unwrapped
from .checks import Boundary, Check, CompiledCall, Fingerprint, drop_zeros, has_gradient, trace_of
from .directives import PASSED, rank_and_world
from .forward import PassWatch, in_backward, is_compiled

__all__ = ["BlockFreezer", "FreezeRefused", "find_blocks", "give_back", "owner_of", "unwrapped"]

#: Names of weights that a reason lists, at most.
NAMES_LISTED: Final = 3
#: Classes that exchange the gradients of a model's weights between ranks, and expect that some have none.
REDUCERS: Final = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"})
MOVED: Final = "frozen weights moved all the same: the optimizer, or another part of the loop, moves weights that have no gradient"
REPLACED: Final = "weights of frozen blocks were replaced by others, as load_state_dict(assign=True) does"


class FreezeRefused(Exception):
    """The model cannot be frozen without harm; nothing was changed."""


class _Stopped(NamedTuple):
    """A weight of a frozen block, and its place: a loop may put another one there, which then does not train, either."""

    parameter: nn.Parameter
    #: Whether it trained when it was frozen: a loop may thaw its own layers meanwhile.
    trained: bool
    owner: nn.Module
    name: str

    def now(self) -> nn.Parameter:
        # Those of a scripted module are no dictionary.
        found = dict(self.owner._parameters.items()).get(self.name)
        return self.parameter if found is None else found


class _Changes:
    """The changes that a freeze made to a model. They belong to the blocks, and outlive a freezer that was not closed."""

    def __init__(self) -> None:
        #: Weights of each frozen block.
        self.stopped: list[list[_Stopped]] = []
        #: Weights in front of the blocks, which get no gradient by these while they are frozen, and worked for nothing else at the check.
        self.idle: list[nn.Parameter] = []
        #: Those of them that got a gradient all the same.
        self.passed: list[nn.Parameter] = []
        #: Weights that train while blocks are frozen.
        self.trained: list[nn.Parameter] = []
        #: Whether a pass was made since the last step of an optimizer.
        self.is_in_step = False
        #: Those of the model and of the optimizers.
        self.hooks: list[Any] = []
        #: Hooks that are called after a step of the optimizers.
        self.after: list[Any] = []
        #: The steps after the freeze, while they are looked at.
        self.check: Check | None = None
        #: Whether the freezer or its job is gone, which a collector found, maybe in the middle of a step.
        self.is_left = False

    def thaw(self, layers: int) -> None:
        """Has all blocks but the first ``layers`` train again, and removes all hooks."""
        try:
            self.end_check()
        finally:
            for stopped in self.stopped[layers:]:
                _thaw(stopped)
            del self.stopped[layers:]
            if layers == 0:
                self.idle, self.passed, self.trained = [], [], []
            hooks, self.hooks, self.after = [*self.hooks, *self.after], [], []
            for hook in hooks:
                hook.remove()

    def give_back(self) -> None:
        """Has the model train as it did before the freeze."""
        self.is_left = False
        self.thaw(0)

    def leave(self) -> None:
        """Has the model train as before the freeze at the next pass of a new step, or after the optimizer's step.

        Nothing is changed now: gradients of weights that train again in the middle of a step are wrong, and hooks may be on their way.
        """
        self.is_left = True

    def thaw_left(self) -> bool:
        """Gives back what was left, before the first pass of a step; returns whether it does.

        Checkpointing calls blocks again in the backward pass.
        """
        if in_backward():
            return False
        was_in_step, self.is_in_step = self.is_in_step, self.is_in_step or torch.is_grad_enabled()
        if not self.is_left or (was_in_step if self.after else any(has_gradient(weight) for weight in self.trained)):
            return False
        self.give_back()
        return True

    def after_step(self, *_: Any) -> None:
        self.is_in_step = False
        if self.is_left:
            # Hooks like this one are on their way. They stay, and do nothing any more.
            self.after = []
            self.give_back()

    def end_check(self) -> None:
        check, self.check = self.check, None
        if check is not None:
            check.close()

    def held(self) -> set[int]:
        """Returns the identities of the weights that trained before they were stopped."""
        return {id(stopped.parameter) for record in self.stopped for stopped in record if stopped.trained}

    def before_step(self, *_: Any) -> None:
        # A gradient of zeros, as zero_grad(set_to_none=False) leaves it, moves weights by momentum and decay.
        if self.check is not None:
            self.check.before_step()
        for record in self.stopped:
            for stopped in record:
                stopped.parameter.grad = None
        # The same on every rank, each of which has the same gradients then: what is there is kept, whichever rank it comes from.
        if self.check is None and self.idle:
            passed = drop_zeros(self.idle)
            self.passed = self.passed or passed


#: What is changed now in the models of this process, by their frozen blocks.
_changes: weakref.WeakKeyDictionary[nn.Module, _Changes] = weakref.WeakKeyDictionary()


def give_back(model: nn.Module) -> None:
    """Has the blocks of a model train again that a job froze and left so: an earlier job was asked for it, and not the next one."""
    for module in model.modules():
        changes = _changes.pop(module, None)
        if changes is not None:
            changes.give_back()


class BlockFreezer:
    """Freezes and unfreezes a prefix of blocks of one model, on every rank at the same step.

    What another freezer froze of the same blocks trains again, and so does all if nothing refers to the freezer any more: at once, or at
    the next pass or after the optimizer's step if a collector of cycles found it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        blocks: Sequence[nn.Module] | None = None,
        wrapper_refusal: Callable[[], str | None] | None = None,
    ) -> None:
        give_back(model)
        self.model = model
        self._wrapper_refusal = wrapper_refusal or (lambda: _refusal_of_ranks(model))
        self.blocks = list(blocks) if blocks is not None else find_blocks(model)
        #: Recompilations that torch.compile was given cause for.
        self.recompilations = 0
        self._changes = _Changes()
        # A collector calls this before `__del__`; a last reference that goes calls it after.
        weakref.finalize(self, self._changes.leave).atexit = False
        self._boundary: Boundary | None = None
        self._watch = PassWatch(model, self.blocks)
        self._optimizers = _plain(optimizers)
        # Sharded weights have others in their place in a pass.
        self._is_sharded = is_sharded(model)
        #: What the frozen weights were.
        self._before: Fingerprint | None = None
        #: Why the steps after the freeze cannot be looked at.
        self._unchecked: str | None = None

    @property
    def frozen(self) -> int:
        """Blocks that are frozen now."""
        return len(self._changes.stopped)

    def close(self) -> None:
        """Has all blocks train again, and removes every hook."""
        self._changes.give_back()
        self._before = None
        self._watch.close()

    def leave(self) -> None:
        """Has all blocks train again at the next pass, or after the optimizer's step. It may run in the middle of one."""
        self._changes.leave()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if not self._changes.is_left:
                self.close()

    def look_again(self, whole: bool = False) -> None:
        """Looks for reentrant checkpointing in the next forward pass; if ``whole``, at how blocks are called and what trains, too."""
        # A pass with frozen blocks shows less than the one before the freeze did.
        self._watch.look_again(whole and self.frozen == 0)

    @property
    def is_looking(self) -> bool:
        """Whether the step of now is looked at, and ``end_look`` is to be called after it."""
        return self._watch.is_looking

    def end_look(self) -> None:
        """Ends the look at a step. Call it after each one."""
        self._watch.end_step()

    def refusal(self, layers: int) -> str | None:
        """Returns why these blocks cannot be frozen; ``None``: they can."""
        if not self.blocks:
            return "no blocks were found: name them with layers=[...]"
        if layers >= len(self.blocks):
            return f"{layers} of {len(self.blocks)} blocks: at least the last one trains"
        uncalled = next((block for block in self.blocks if not is_called(block)), None)
        if uncalled is not None:
            return f"a block is a {type(uncalled).__name__}, which is never called itself: name modules that are, with layers=[...]"
        self._watch.end_step()
        # All blocks can train again whatever the wrapper: that is how the job was started.
        if layers in (0, self.frozen):
            return None
        return (
            self._wrapper_refusal()
            or _refusal_of_wrapper(self.model)
            or _refusal_of_checkpointing(self.model, self._watch)
            or _refusal_of_shared_weights(self.model, self.blocks, layers, self._changes.held())
            or self._watch.wanted_of(layers)
            or (None if self._watch.view is None else self._watch.view.refusal)
            or (self._refusal_of_front() if self.frozen == 0 else None)
            or self._refusal_of_the_rest(layers)
        )

    def _refusal_of_front(self) -> str | None:
        """Refuses if a freeze would stop more in front of the blocks than a small front end, or a part of its gradients."""
        view = self._watch.view
        if view is None:
            return self._refusal_of_idle(self._front_by_order())
        if view.reached is not None:
            reason = self._refusal_of_partly([weight for identity, weight in view.front.items() if identity in view.reached])
            if reason is not None:
                return reason
        return self._refusal_of_idle(list(view.front.values()))

    def _refusal_of_partly(self, weights: Sequence[nn.Parameter]) -> str | None:
        tied = tied_embeddings(unwrapped(self.model))
        partly = [weight for weight in weights if id(weight) not in tied]
        reason = "weights in front of the blocks, which other parts use as well, would train on a part of their gradients"
        return f"{reason}: {self._named(partly)}" if partly else None

    def _refusal_of_idle(self, weights: Sequence[nn.Parameter]) -> str | None:
        """Refuses if more would stop with the blocks than a small front end. Embeddings have many weights and do little."""
        embeddings = embedding_weights(unwrapped(self.model))
        front = [weight for weight in weights if id(weight) not in embeddings]
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
        view, held = self._watch.view, self._changes.held()
        frozen = {id(parameter) for block in self.blocks[:layers] for parameter in block.parameters()}
        behind = (
            [parameter for block in self.blocks[layers:] for parameter in block.parameters()]
            if view is None or view.reached is None
            else [parameter for parameter in self.model.parameters() if id(parameter) in view.reached]
        )
        if any(id(parameter) not in frozen and (parameter.requires_grad or id(parameter) in held) for parameter in behind):
            return None
        return f"nothing would be left to train behind the first {layers} blocks"

    def empties_an_optimizer(self, layers: int) -> bool:
        """Returns whether this freeze takes the last weights of an optimizer: a gradient scaler raises in its step then."""
        stopped = {id(parameter) for block in self.blocks[:layers] for parameter in block.parameters()}
        if layers > 0:
            stopped.update(id(parameter) for parameter in self._front_at_most())
        held = self._changes.held()
        for optimizer in self._optimizers:
            # A loop may have stopped all weights of an optimizer itself, as loops of a GAN do in turns.
            trains = [id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad or id(p) in held]
            if trains and stopped.issuperset(trains):
                return True
        return False

    def freeze(self, layers: int) -> None:
        """Freezes exactly the first ``layers`` blocks; 0 unfreezes all. Raises :class:`FreezeRefused`.

        If anything else fails, all blocks train again, and no hook is left.
        """
        refusal = self.refusal(layers)
        if refusal is not None:
            raise FreezeRefused(refusal)
        if layers == self.frozen:
            return
        # Before a compiled model is compiled once more: its hooks would stay.
        self._watch.close()
        self._changes.is_left = self._changes.is_in_step = False
        try:
            self._change(self.frozen, layers)
        except BaseException:
            self._changes.give_back()
            self._boundary = self._before = None
            raise
        if self._watch.was_compiled or is_compiled(self.model):
            self.recompilations += 1

    def _change(self, before: int, layers: int) -> None:
        """Changes what is frozen: hooks and what may fail first, weights and gradients after them."""
        changes, view = self._changes, self._watch.view
        # Zeros, as zero_grad(set_to_none=False) leaves them, would move what gets no gradient any more. Without a view they are
        # removed before the optimizer's step: the others may be those of a part of a step, of weights behind the blocks.
        in_front = self._front_at_most() if before == 0 and (view is not None or not self._optimizers) else []
        changes.thaw(min(layers, before))
        new = [_record(block, changes.held()) for block in self.blocks[before:layers]]
        changes.stopped += new
        for index, block in enumerate(self.blocks):
            if index < layers:
                _changes[block] = changes
            elif _changes.get(block) is changes:
                del _changes[block]
        self._boundary = self._before = None
        if layers > 0:
            # With tied embeddings the gradient would go through all frozen blocks to reach them.
            boundary = self._boundary = Boundary(self.model, view, trace_of(self.model, self.blocks[0]), changes.thaw_left)
            first = self.blocks[0]
            changes.hooks += boundary.hooks
            changes.hooks.append(
                first.register_forward_pre_hook(boundary, with_kwargs=True)
                if first._compiled_call_impl is None
                else CompiledCall(first, boundary)
            )
            # Each at once, for what takes them back.
            for optimizer in self._optimizers:
                changes.hooks.append(optimizer.register_step_pre_hook(changes.before_step))
                changes.after.append(optimizer.register_step_post_hook(changes.after_step))
            self._before = Fingerprint([stopped.parameter for record in changes.stopped for stopped in record if stopped.trained])
        stopping = [stopped.parameter for record in new for stopped in record]
        for parameter in stopping:
            parameter.requires_grad_(False)
        if layers > 0:
            changes.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for parameter in stopping + in_front:
            parameter.grad = None

    def frozen_parameters(self) -> list[nn.Parameter]:
        """Returns the weights that must not move now."""
        blocks = [stopped.parameter for record in self._changes.stopped for stopped in record]
        return [*blocks, *self._changes.idle]

    def front_before(self) -> object:
        """Returns what the pass before a freeze showed in front of the blocks: on all ranks the same, or they are not frozen."""
        view = self._watch.view
        if view is None:
            return None
        reached = [] if view.reached is None else [weight for identity, weight in view.front.items() if identity in view.reached]
        return self._names(view.front.values()), self._names(reached), sorted(map(str, view.shared_inputs))

    def front_after(self) -> object:
        """Returns the names of the weights that the check found to get no gradient any more: on all ranks the same, or all are thawed."""
        check = self._changes.check
        return None if check is None else self._names(check.idle())

    def stopped_in_front(self) -> str | None:
        """Returns the names of weights in front of frozen blocks that get no gradient any more; ``None``: there are none."""
        return self._named(self._changes.idle) if self._changes.idle else None

    def moved(self) -> bool:
        """Returns whether frozen weights are others than when they were frozen: optimizers may move what has no gradient."""
        return self._before is not None and self._before.differs()

    def opened(self) -> str | None:
        """Returns why gradients go past or through the frozen blocks in some passes; ``None``: they do in none."""
        changes, opened = self._changes, None if self._boundary is None else self._boundary.opened
        if not self._is_sharded and any(stopped.now() is not stopped.parameter for record in changes.stopped for stopped in record):
            return REPLACED
        # Without a hook on an optimizer, what is there now shows it.
        passed = changes.passed or ([weight for weight in changes.idle if has_gradient(weight)] if changes.check is None else [])
        if opened is None and passed:
            return f"{PASSED}: {self._named(passed)}"
        if opened is None or self._boundary is None or not self._boundary.unseen:
            return opened
        return f"{opened}: {self._named(list(self._boundary.unseen.values()))}"

    def begin_check(self) -> None:
        """Looks at the next steps. Call it after a freeze, and ``check`` after each step."""
        self._changes.end_check()
        self._unchecked = None
        # Whatever goes wrong, all ranks look at the same steps.
        try:
            self._begin_check()
        except Exception as error:
            self._unchecked = f"the job cannot check what it trains: {error}"

    def _begin_check(self) -> None:
        if self._boundary is not None:
            check = Check(self.model, self.blocks, self.frozen, self._boundary, self._watch.view)
            self._changes.check = check
            if check.order is not None:
                self._changes.hooks += check.order.hooks

    def check(self, is_last: bool) -> tuple[bool, str | None]:
        """Returns whether the steps since ``begin_check`` showed that the freeze is exact, and why it must be taken back.

        A block may be left out of a pass: it is only missing if the step ``is_last``.
        """
        check = self._changes.check
        if check is None:
            return self._unchecked is None, self._unchecked
        if self.moved():
            return False, MOVED
        refusal = self.opened() or self._refusal_of_partly(check.partly_trained()) or self._refusal_of_idle(check.idle())
        return (False, refusal) if refusal is not None else check.outcome(is_last)

    def end_check(self) -> None:
        """Ends the look; what is in front of the blocks and got no gradient gets none as long as they are frozen."""
        check = self._changes.check
        if check is not None:
            self._changes.idle = check.idle()
            self._changes.end_check()
            if self._boundary is not None:
                self._boundary.settle(self._changes.idle)

    def _named(self, parameters: Sequence[nn.Parameter]) -> str:
        """Returns the names of the first weights of a few, and how many there are."""
        names = self._names(parameters)
        return ", ".join(names[:NAMES_LISTED]) + (f" and {len(names) - NAMES_LISTED} more weights" if len(names) > NAMES_LISTED else "")

    def _names(self, parameters: Iterable[nn.Parameter]) -> list[str]:
        wanted = {id(parameter) for parameter in parameters}
        return [name for name, parameter in unwrapped(self.model).named_parameters() if id(parameter) in wanted]

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

    def _front_at_most(self) -> list[nn.Parameter]:
        """Returns the weights that may get no gradient any more, in front of the blocks. Tied embeddings go on training."""
        view = self._watch.view
        if view is not None:
            return [parameter for identity, parameter in view.front.items() if view.reached is None or identity not in view.reached]
        inside = {id(parameter) for block in self.blocks for parameter in block.parameters()}
        return [parameter for parameter in self.model.parameters() if id(parameter) not in inside]


def _record(block: nn.Module, held: Collection[int] = ()) -> list[_Stopped]:
    """Returns the weights of a block with whether each one trains, or did before another block with it was stopped (``held``)."""
    return [
        _Stopped(parameter, parameter.requires_grad or id(parameter) in held, owner, name)
        for owner in block.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None
    ]


def _thaw(record: Sequence[_Stopped]) -> None:
    """Has weights train again that trained before they were stopped; the others are left to the loop, which may have thawed them."""
    for stopped in record:
        if not stopped.trained:
            continue
        # One that cannot be changed keeps no other from training, and no hook from its removal.
        with contextlib.suppress(Exception):
            _train(stopped.parameter)
        with contextlib.suppress(Exception):
            # What was put in its place got this from it.
            _train(stopped.now())


def _train(parameter: nn.Parameter) -> None:
    """Has a weight train; one of whole numbers, as quantized ones are, cannot."""
    if parameter.is_floating_point() or parameter.is_complex():
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


def _refusal_of_ranks(model: nn.Module) -> str | None:
    """Refuses if ranks exchange gradients in a way that is not known: loops that do it themselves may expect one of each weight."""
    ranks = rank_and_world()
    if ranks is None or ranks[1] == 1:
        return None
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if kinds & REDUCERS:
        return None
    return "the loop exchanges gradients between ranks itself, of which frozen weights have none: wrap the model with DDP or FSDP"


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
