"""What is looked at in the steps after a freeze: which weights get a gradient, by which way, and whether frozen ones stand still.

A freeze cuts gradients off at the inputs of the first block. Whatever else leads to the weights in front of it would train them on a part
of their gradients, wherever it begins: no structure of a model shows all of these ways, but gradients do.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import nn

from .blocks import is_called, tied_embeddings, unwrapped
from .forward import (
    FOREIGN,
    INPUT,
    Hook,
    MadeLeaves,
    OwnWeights,
    Unscripted,
    View,
    edges_of,
    in_backward,
    inert,
    is_closed,
    is_compiled,
    is_exported,
    leaves_of,
    walk,
    when_compiling,
)

UNSEEN: Final = "weights lead to the blocks that did not in the step before the freeze, and would not train in such a step"
OPEN: Final = "gradients are wanted of what the compiled code with the first block is given, and would end in front of the blocks"

#: Types by which the bits of numbers are added up, by their bytes.
BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Operations that give a weight another form.
FORMS: Final = frozenset(
    {"SplitWithSizes", "Split", "View", "UnsafeView", "AsStrided", "Slice", "Select", "T", "Transpose", "ToCopy", "Alias"}
)
#: Numbers that are added up at once.
PART: Final = 1 << 22


class Trace:
    """What is noted of calls: at the first block, and of modules outside of the blocks before it and behind it alone.

    Of compiled code it is noted where that is compiled. The code of an earlier freeze may run again, and notes nothing.
    """

    def __init__(self) -> None:
        #: Whether the first block was called where gradients are wanted, with the inputs detached, and whether since ``begin``.
        self.has_begun = self._is_begun_now = False
        #: Why gradients are not cut off in compiled code.
        self.opened: str | None = None
        self._before: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._behind: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def begin(self) -> None:
        """Begins to note the calls of a pass. A module that was not seen before is behind the block only if that is noted, too."""
        self._is_begun_now = False
        self.opened = None

    def on_block(self) -> None:
        self.has_begun = self._is_begun_now = True

    def on_call(self, module: nn.Module) -> None:
        if self._is_begun_now and module not in self._before:
            self._behind.add(module)
        elif module not in self._behind:
            self._before.add(module)

    def is_behind(self, module: nn.Module) -> bool:
        return module in self._behind


#: Of models that are compiled, by their first block.
_traces: weakref.WeakKeyDictionary[nn.Module, Trace] = weakref.WeakKeyDictionary()


def trace_of(model: nn.Module, block: nn.Module) -> Trace:
    """Returns where calls are noted: for a compiled model what was noted before, too."""
    return _traces.setdefault(block, Trace()) if is_compiled(model) else Trace()


class Boundary(Unscripted):
    """Hook that detaches the inputs of the first block, but for those that later blocks take as well: these lead to their gradients.

    Where no pass showed how blocks are called, it is the first input of which a gradient is wanted: the others may go to each block.
    Each pass is looked at: nothing is detached if anything else wants a gradient by these inputs than the weights in front of the blocks
    that the freeze stops, whose gradients are removed.
    """

    def __init__(self, model: nn.Module, view: View | None, trace: Trace, thaw_left: Callable[[], bool]) -> None:
        self.trace = trace
        #: Has the blocks train again if nothing refers to the job any more; returns whether it does.
        self._thaw_left = thaw_left
        self._shared: frozenset[int | str] = frozenset() if view is None else view.shared_inputs
        self._is_first_only = view is None
        self._own, self._made = OwnWeights(model), MadeLeaves(model)
        #: Those of the model, besides the one that this is.
        self.hooks = self._made.hooks
        self._tied = tied_embeddings(unwrapped(model))
        #: Weights in front of the blocks that may be cut off; ``None``: all of the model, until a check has seen which there are.
        self._stopped: set[int] | None = None if view is None else self._tied | set(view.front)
        self._met: set[int] = set()
        #: Why the inputs were not detached in a pass, and which weights of the model these were.
        self._opened: str | None = None
        self.unseen: dict[int, nn.Parameter] = {}
        #: Whether gradients reach what is in front of the blocks by another way, while that is watched.
        self.is_passed = False
        #: Weights that were found in front of the blocks, while that is watched.
        self.front: dict[int, nn.Parameter] = {}
        self._watched: frozenset[int] | None = None
        self._note = when_compiling(self._on_compiling)

    def __call__(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if is_exported() or (not torch.compiler.is_compiling() and self._thaw_left()):
            return args, kwargs
        # Some loops train a model in the mode of evaluation.
        if torch.is_grad_enabled() and not (self._note() if torch.compiler.is_compiling() else self._may_cut(args, kwargs)):
            return args, kwargs
        is_cut = False
        positional: list[Any] = []
        for place, value in enumerate(args):
            cut = self._is_cut(place, value) and not (self._is_first_only and is_cut)
            is_cut = is_cut or cut
            positional.append(value.detach() if cut else value)
        named: dict[str, Any] = {}
        for name, value in kwargs.items():
            cut = self._is_cut(name, value) and not (self._is_first_only and is_cut)
            is_cut = is_cut or cut
            named[name] = value.detach() if cut else value
        return tuple(positional), named

    def __reduce__(self) -> tuple[Any, ...]:
        return inert()

    @property
    def opened(self) -> str | None:
        """Why gradients were not cut off in a pass; ``None``: they always were."""
        return self._opened or self.trace.opened

    def watch(self, weights: frozenset[int]) -> None:
        """Has the next passes looked at; ``weights``: identities of those of the model."""
        self._watched = weights
        self.front, self.is_passed = {}, False

    def end_watch(self) -> None:
        self._watched = None

    def settle(self, judged: Sequence[nn.Parameter] = ()) -> None:
        """Has only those weights cut off from now on that were in front of the blocks until now.

        ``judged``: those of which the check found so where no graph was seen, as in compiled code.
        """
        if self._stopped is None:
            self._stopped = self._tied | self._met | {id(weight) for weight in judged}

    def _is_cut(self, place: int | str, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.requires_grad and place not in self._shared

    def _on_compiling(self) -> bool:
        self.trace.on_block()
        try:
            may_cut = is_closed(self._own)
        except Exception:
            may_cut = False
        if not may_cut:
            self.trace.opened = OPEN
        return may_cut

    def _may_cut(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether this pass is one whose inputs may be detached, and looks at it while that is wanted."""
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        inputs = [value for place, value in given if self._is_cut(place, value)]
        if self._is_first_only:
            del inputs[1:]
        is_watched = self._watched is not None and not in_backward()
        if is_watched:
            self.trace.on_block()
        # What goes wrong here must not reach training.
        try:
            opened = self._refusal_of(leaves_of(edges_of(inputs))) if inputs else None
        except Exception as error:
            opened = f"it cannot be seen what is in front of the blocks: {error}"
        if opened is not None:
            self._opened = self._opened or opened
        elif is_watched:
            with contextlib.suppress(Exception):
                self._watch(inputs)
        return opened is None

    def _refusal_of(self, leaves: list[torch.Tensor] | str) -> str | None:
        """Returns why what leads to these leaves is not detached; ``None``: it is."""
        if isinstance(leaves, str):
            return leaves
        stopped = self._stopped
        for leaf in leaves:
            if stopped is not None and id(leaf) in stopped:
                continue
            if not isinstance(leaf, nn.Parameter):
                if not self._made.has(leaf):
                    return INPUT
            elif not self._own.has(leaf):
                return FOREIGN
            elif stopped is None:
                self._met.add(id(leaf))
            else:
                self.unseen[id(leaf)] = leaf
                return UNSEEN
        return None

    def _watch(self, inputs: list[torch.Tensor]) -> None:
        """Looks at the graph in front of the blocks: no gradient may come to its nodes, but for weights that are used elsewhere, too."""
        found = walk(edges_of(inputs), (), self._watched or ())
        self.front.update(found.weights)
        for node in found.nodes:
            if not _is_of_weight(node):
                node.register_prehook(self._on_gradient)

    def _on_gradient(self, gradients: Any) -> None:
        if any(gradient is not None for gradient in gradients):
            self.is_passed = True


class CompiledCall:
    """Stands before the call of a block that was compiled in place: a hook would be compiled with it, and not look at each pass."""

    def __init__(self, block: nn.Module, boundary: Boundary) -> None:
        self._block, self._boundary, self._call = block, boundary, block._compiled_call_impl
        block._compiled_call_impl = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._boundary(self._block, args, kwargs)
        assert self._call is not None
        return self._call(*args, **kwargs)

    def remove(self) -> None:
        """Gives the block its own call back, unless it was compiled anew meanwhile."""
        if self._block._compiled_call_impl is self:
            self._block._compiled_call_impl = self._call


def _is_of_weight(node: Any) -> bool:
    """Returns whether a node of a graph is a weight, or another form of one: sharded weights are views of what all of them are in."""
    while node.next_functions:
        name = node.name().removesuffix("0").removesuffix("Backward")
        following = [edge[0] for edge in node.next_functions if edge[0] is not None]
        if name not in FORMS or len(following) != 1:
            return False
        node = following[0]
    return True


class CallOrder:
    """Notes which modules outside of the blocks are called behind the first block alone: what they have is not in front of it.

    For passes of which no graph is seen. In compiled code the hooks stay: without them it would be compiled anew.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], trace: Trace) -> None:
        self._trace = trace
        trace.begin()
        inside = {id(module) for block in blocks for module in block.modules()}
        self._outside = [module for module in model.modules() if id(module) not in inside]
        self._blocks = {id(parameter) for block in blocks for parameter in block.parameters()}
        self.hooks: list[Any] = []
        for module in self._outside:
            if is_called(module) and any(parameter is not None for parameter in module._parameters.values()):
                self.hooks.append(module.register_forward_pre_hook(Hook(self._hook(module))))

    def _hook(self, module: nn.Module) -> Any:
        trace = self._trace
        note = when_compiling(lambda: trace.on_call(module))

        def hook(_module: nn.Module, _: Any) -> None:
            if not torch.is_grad_enabled() or is_exported():
                return
            if torch.compiler.is_compiling():
                note()
            else:
                trace.on_call(module)

        return hook

    def front(self) -> list[nn.Parameter]:
        """Returns the trainable weights that may be in front of the blocks: all but those of modules that were only called behind."""
        found: dict[int, nn.Parameter] = {}
        for module in self._outside:
            for parameter in () if self._trace.is_behind(module) else module._parameters.values():
                if parameter is not None and parameter.requires_grad and id(parameter) not in self._blocks:
                    found[id(parameter)] = parameter
        return list(found.values())


class Check:
    """The steps after a freeze, in which gradients and weights are looked at."""

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], frozen: int, boundary: Boundary, view: View | None) -> None:
        self._blocks, self._frozen, self._boundary, self._view = list(blocks), frozen, boundary, view
        self._is_compiled = is_compiled(model)
        self._tied = tied_embeddings(unwrapped(model))
        self.order = CallOrder(unwrapped(model), blocks, boundary.trace) if view is None else None
        #: Weights that got a gradient, by hooks on them, and those that had one at the step of an optimizer.
        self._received: set[int] = set()
        self._had: set[int] = set()
        self._steps = 0
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        inside = {id(parameter) for block in blocks for parameter in block.parameters()}
        self._outside = [parameter for parameter in trained if id(parameter) not in inside]
        self._hooks: list[Any] = []
        for parameter in trained:
            # Weights of some wrappers take no hook.
            with contextlib.suppress(Exception):
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._on_received))
        boundary.watch(frozenset(id(parameter) for parameter in model.parameters()))

    def close(self) -> None:
        """Ends it. In compiled code the hooks that note the order of calls are left to the end of the freeze."""
        hooks, self._hooks = self._hooks, []
        if self.order is not None and not self._is_compiled:
            hooks += self.order.hooks
        for hook in hooks:
            hook.remove()
        self._boundary.end_watch()

    def _on_received(self, weight: torch.Tensor) -> None:
        # Compiled code may hand over none.
        if weight.grad is not None:
            self._received.add(id(weight))

    def front(self) -> list[nn.Parameter]:
        """Returns the weights from which the freeze cuts a gradient off, as far as the steps showed."""
        if not self._boundary.trace.has_begun:
            return []
        if self.order is not None:
            return self.order.front()
        known = {} if self._view is None else self._view.front
        return list({**known, **self._boundary.front}.values())

    def idle(self) -> list[nn.Parameter]:
        """Returns those of them that got no gradient, and for which there is none but by the blocks."""
        got = self._received | self._had
        return [weight for weight in self.front() if id(weight) not in got and id(weight) not in self._tied]

    def before_step(self) -> None:
        """Notes gradients where no hook sees them, and removes zeros of weights that got none."""
        self._steps += 1
        if not self._received:
            # Wrappers that shard weights hand gradients over themselves.
            self._had.update(id(weight) for weight in self._outside if has_gradient(weight))
        elif self._is_compiled:
            # The gradient may be what an earlier step left.
            self._received.difference_update(id(weight) for weight in self.front() if not has_gradient(weight))
        # A gradient that another rank has is one of all.
        self._had.update(id(weight) for weight in drop_zeros(self.idle()))

    def partly_trained(self) -> list[nn.Parameter]:
        """Returns weights that train on a part of their gradients. Tied embeddings do so by the head, as they should."""
        got = self._received | self._had
        return [weight for weight in self.front() if id(weight) in got and id(weight) not in self._tied]

    def outcome(self, is_last: bool) -> tuple[bool, str | None]:
        """Returns whether gradients came where they should, and why the freeze must be taken back. A block may be left out of a pass."""
        if self._boundary.is_passed:
            return False, "what is in front of the blocks is used by other parts as well, and would train on a part of its gradients"
        if not self._boundary.trace.has_begun and (self._is_compiled or self._view is not None):
            return False, "it cannot be seen how the first block is called" if is_last else None
        if not self._received:
            is_unseen = self._steps == 0 and any(id(weight) not in self._tied for weight in self.front())
            return not is_unseen, "it cannot be seen which weights still train" if is_unseen and is_last else None
        reached = None if self._view is None else self._view.reached
        for index, block in enumerate(self._blocks[self._frozen :], self._frozen):
            weights = {id(weight) for weight in block.parameters() if weight.requires_grad}
            if reached is not None:
                weights &= reached
            if weights and not weights & self._received:
                return False, f"block {index} got no gradient any more" if is_last else None
        return True, None


class Fingerprint:
    """What weights were, as the sums of their bits: a few numbers instead of a copy. It is read without waiting for the device."""

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self._sums = [(weight, total) for weight in weights if (total := _sum_of_bits(weight)) is not None]

    def differs(self) -> bool:
        """Returns whether a weight is another one now. Waits for the device."""
        pairs = [(then, now) for weight, then in self._sums if (now := _sum_of_bits(weight)) is not None]
        # Once for all weights of a device.
        for device in {then.device for then, _ in pairs}:
            here = [(then, now) for then, now in pairs if then.device == device and now.device == device]
            if here and not torch.equal(torch.stack([then for then, _ in here]), torch.stack([now for _, now in here])):
                return True
        return False


def _sum_of_bits(weight: Any) -> Any:
    """Returns the sum of a weight's bits, on its device; ``None``: its kind has none that can be read."""
    try:
        own = _own(weight.detach())
        bits = own.view(BITS[own.element_size()]).reshape(-1)
        # In parts: each is copied to numbers of 64 bits.
        return torch.stack([part.sum(dtype=torch.int64) for part in bits.split(PART)]).sum()
    except Exception:
        return None


def _own(tensor: Any) -> Any:
    """Returns this rank's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def drop_zeros(weights: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Removes gradients of zeros, which move weights by momentum and decay; returns the weights that have another one, and keep it."""
    kept = []
    for weight in weights:
        if has_gradient(weight):
            kept.append(weight)
        else:
            weight.grad = None
    return kept


def has_gradient(weight: nn.Parameter) -> bool:
    """Returns whether there is a gradient that is not zero: loops may leave zeros there. Waits for the device if there is one."""
    if weight.grad is None:
        return False
    try:
        return bool(_own(weight.grad.detach()).any())
    except Exception:
        # A gradient of another kind, as a sparse one.
        return True
