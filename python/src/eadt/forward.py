"""What a forward pass in training shows of a model's blocks: how they are called, and which weights reach the outputs by which way.

Seen by hooks, which are there in one pass and go. In a pass that torch.compile compiled whole none of them runs: nothing is known then.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final

import torch
from torch import nn

from .blocks import is_called, path_to, unwrapped

#: Calls of each block until the outputs are given up.
PASSES = 16
#: Nodes of a graph in front of the blocks, at most: it is walked in each pass while blocks are frozen.
MOST_NODES: Final = 1000
#: Names of the hooks by which transformers and PEFT have the output of an embedding require gradients that are not used.
LEAF_MAKERS: Final = "make_inputs_require_grad"

FOREIGN: Final = (
    "weights that are not of this model lead to the blocks, as of a generator or an encoder in front of it, and would not train"
)
INPUT: Final = "gradients of what the model is given are wanted, as in adversarial training, and would end in front of the blocks"

BY_NAME: Final = (
    "the loop takes gradients by name (torch.autograd.grad, or backward with inputs=), which raises for what is frozen or in front of it"
)
HOOKED: Final = "the loop wants gradients of what these blocks compute (retain_grad or a hook on a tensor), and frozen blocks have none"

LONG: Final = "too much is computed in front of the blocks to look in each step whether something else wants its gradients"
HIDDEN: Final = (
    "reentrant gradient checkpointing in front of the blocks hides whether something else wants its gradients: use use_reentrant=False"
)

SCRIPTED: Final = (
    "EADT has a hook on this module, which torch.jit.script cannot compile: script another model that is given this one's state_dict(), "
    "or use torch.jit.trace or torch.export"
)
#: Earlier versions of PyTorch do not show it.
_is_exporting: Final = getattr(torch.compiler, "is_exporting", lambda: False)

#: What begins a backward pass.
BACKWARD: Final = frozenset({torch.autograd.grad.__code__, torch.autograd.backward.__code__})

#: A place in the graph of gradients: a node, and which of its outputs.
Edge = tuple[Any, int]


class Unscripted:
    """What torch.jit.script cannot compile, with the reason: it asks each hook of a module for its name."""

    @property
    def __name__(self) -> str:
        raise AttributeError(SCRIPTED)


class Hook(Unscripted):
    """A hook on a module. A copy of the module, or one that was pickled, has one in its place that does nothing and needs no package."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return inert()


def is_exported() -> bool:
    """Returns whether torch.export or torch.jit.trace records this pass: it is none of training, and what hooks do in it would stay."""
    return _is_exporting() if torch.compiler.is_compiling() else torch.jit.is_tracing()


def inert() -> tuple[Any, ...]:
    """Returns what ``__reduce__`` of a hook returns: the standard library's method that takes any arguments, and does nothing."""
    return getattr, (contextlib.nullcontext(), "__exit__")


@dataclass
class View:
    """What one pass showed."""

    #: Why blocks called in this way cannot be frozen.
    refusal: str | None = None
    #: Trainable weights in front of the first block, which only its inputs that can be detached lead to.
    front: dict[int, nn.Parameter] = field(default_factory=dict)
    #: Trainable weights from which a way to the outputs remains if these inputs are detached; ``None``: the outputs were not seen.
    reached: set[int] | None = field(default_factory=set)
    #: Arguments of the first block that later blocks take as well, as what an encoder passes to each block of a decoder.
    shared_inputs: frozenset[int | str] = frozenset()


@dataclass
class Found:
    """What a walk through the graph met."""

    weights: dict[int, nn.Parameter] = field(default_factory=dict)
    stopped_at: set[Edge] = field(default_factory=set)
    nodes: set[Any] = field(default_factory=set)
    #: Leaves that are none of the known weights: other weights, or tensors of which gradients are wanted.
    others: list[torch.Tensor] = field(default_factory=list)
    is_known: bool = True
    is_reentrant: bool = False


def is_compiled(model: nn.Module) -> bool:
    """Returns whether torch.compile wraps a model or a part of it, or compiles it in place."""
    return any(_is_compiled_itself(part) for part in model.modules())


def _is_compiled_itself(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _outside_of_compiled(model: nn.Module) -> list[nn.Module]:
    """Returns a model and what is in it, but compiled modules and what is only inside of these: hooks would be compiled with it."""
    found: dict[int, nn.Module] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found and not _is_compiled_itself(module):
            found[id(module)] = module
            waiting.extend(module.children())
    return list(found.values())


def when_compiling(note: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that runs where torch.compile compiles a call of it, and never in compiled code, which has what it returned."""

    def run() -> Any:
        return note()

    # As torch.compiler.assume_constant_result does, which imports the compiler first: that takes seconds.
    run._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return run


class OwnWeights:
    """Recognises the weights of a model in the graph of a pass, where wrappers that shard them have others in their place."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: set[int] = set()
        self._others: set[int] = set()
        self._learn()

    def has(self, weight: torch.Tensor) -> bool:
        """Returns whether a leaf of a graph is a weight of the model. Call it in the pass: sharded weights exist for so long."""
        identity = id(weight)
        if identity in self._known:
            return True
        if identity in self._others:
            return False
        self._learn()
        if identity not in self._known:
            self._others.add(identity)
        return identity in self._known

    def _learn(self) -> None:
        for module in self._model.modules():
            self._known.update(id(parameter) for parameter in module._parameters.values() if parameter is not None)
            # Wrappers of other versions may lack these attributes.
            with contextlib.suppress(Exception):
                self._known.add(id(module._handle.flat_param))
            with contextlib.suppress(Exception):
                state = module._get_fsdp_state()
                for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
                    self._known.update(
                        id(sharded._unsharded_param) for sharded in group.fsdp_params if hasattr(sharded, "_unsharded_param")
                    )


class MadeLeaves:
    """Notes the leaves that transformers and PEFT make for gradient checkpointing: their gradients are not used.

    They are the output of an embedding, and what the feature encoder of a model of speech begins with.
    """

    def __init__(self, model: nn.Module) -> None:
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}
        self.hooks: list[Any] = []
        for module in _outside_of_compiled(model):
            if any(getattr(hook, "__name__", "").startswith(LEAF_MAKERS) for hook in module._forward_hooks.values()):
                self.hooks.append(module.register_forward_hook(Hook(lambda _module, _, output: self._note(output))))
            convolutions = getattr(module, "conv_layers", None) if hasattr(module, "_requires_grad") else None
            if isinstance(convolutions, nn.ModuleList) and len(convolutions) > 0:
                self.hooks.append(convolutions[0].register_forward_pre_hook(Hook(lambda _module, given: self._note(*given))))

    def has(self, leaf: torch.Tensor) -> bool:
        made = self._made.get(id(leaf))
        return made is not None and made() is leaf

    def _note(self, made: Any, *_: Any) -> None:
        if isinstance(made, torch.Tensor) and made.requires_grad and made.is_leaf:
            self._made = {identity: other for identity, other in self._made.items() if other() is not None}
            self._made[id(made)] = weakref.ref(made)


class PassWatch:
    """Watches one pass: how the blocks are called, and whether checkpointing is reentrant, in any library.

    Reentrant: a block in training runs without gradients, and again in the backward pass. PyTorch calls a module with a hook in a slower
    way, so hooks go with the pass; but not from compiled code, which would be compiled anew.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        self.was_reentrant = False
        #: Blocks whose gradients, or those in front of them, the loop took by name, and those with activations whose gradients it wants.
        self._by_name: set[int] = set()
        self._hooked: set[int] = set()
        #: Whether torch.compile compiled a block, or what calls it, with a hook in it.
        self.was_compiled = False
        self.view: View | None = None
        self._given, self._model, self._blocks = model, unwrapped(model), list(blocks)
        self._is_outer_compiled = type(model).__name__ == "OptimizedModule"
        self._note = when_compiling(self._on_compiling)
        self._ran_without: set[int] = set()
        self._block_hooks: list[Any] = []
        self._outer_hooks: dict[nn.Module, Any] = {}
        #: Those for what comes after the first pass of the step.
        self._later_hooks: list[Any] = []
        #: Whether the step of now is looked at, and its end is waited for.
        self.is_looking = False
        self._is_whole = False
        #: Identities of the model's weights, outside of a pass.
        self._weights: set[int] = set()
        self._own_weights: OwnWeights | None = None
        self._made: MadeLeaves | None = None
        self._forget()
        self.look_again(whole=True)

    def look_again(self, whole: bool = False) -> None:
        """Looks at the next pass: for reentrant checkpointing, and if ``whole`` is true at all else."""
        if self.was_reentrant or (self._block_hooks and (self._is_whole or self.was_compiled or not whole)):
            self.is_looking = self.is_looking or whole
            return
        self._remove()
        self._forget()
        self.is_looking = whole
        # Not those in the pass: sharded weights may have others in their place there.
        self._weights = {id(parameter) for parameter in self._model.parameters()} if whole else set()
        self._own_weights = OwnWeights(self._given) if whole else None
        self._made = MadeLeaves(self._given) if whole else None
        self._block_hooks += self._made.hooks if self._made is not None else []
        is_seen = whole and not is_compiled(self._given)
        for index, block in enumerate(self._blocks if whole else self._blocks[:1]):
            if is_called(block):
                self._block_hooks.append(block.register_forward_pre_hook(Hook(self._before(index)), with_kwargs=True))
                if whole:
                    self._block_hooks.append(block.register_forward_hook(Hook(self._after(index))))
                    self._block_hooks += self._hooks_inside(index, block) if is_seen else []
        if is_seen and self._blocks:
            self._block_hooks += self._hooks_in_front()
        self._is_whole = whole
        for module in path_to(self._model, self._blocks[0]) if whole and self._block_hooks else ():
            # What is compiled whole would have its hooks compiled, too.
            if is_called(module) and not (module is self._model and self._is_outer_compiled):
                self._outer_hooks[module] = module.register_forward_hook(Hook(self._on_outputs))

    def wanted_of(self, layers: int) -> str | None:
        """Returns why the first blocks cannot be frozen without an exception in a loop that wants certain gradients of them."""
        if any(index < layers for index in self._by_name):
            return BY_NAME
        return HOOKED if any(index < layers for index in self._hooked) else None

    def _hooks_inside(self, index: int, block: nn.Module) -> list[Any]:
        """Returns hooks on the parts of a block on which the loop has some: they run after these."""

        def look(_module: nn.Module, _: Any, output: Any) -> None:
            if not self._is_compiled_now():
                self._look_for_hooks(index, output)

        def look_before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._is_compiled_now():
                self._look_for_hooks(index, [args, kwargs])

        parts = [part for part in block.modules() if part is not block and is_called(part)]
        return [
            *(part.register_forward_hook(Hook(look)) for part in parts if part._forward_hooks),
            *(part.register_forward_pre_hook(Hook(look_before), with_kwargs=True) for part in parts if part._forward_pre_hooks),
        ]

    def _hooks_in_front(self) -> list[Any]:
        """Returns hooks on modules outside of the blocks on which the loop has some: what they give before the first block is in front."""
        passed = {id(module) for block in self._blocks for module in block.modules()}
        passed.update(id(module) for module in path_to(self._model, self._blocks[0]))

        def look(_module: nn.Module, _: Any, output: Any) -> None:
            if not torch.compiler.is_compiling() and not self._called:
                self._look_for_hooks(0, output)

        parts = [part for part in self._model.modules() if part._forward_hooks and id(part) not in passed and is_called(part)]
        return [part.register_forward_hook(Hook(look)) for part in parts]

    def _look_for_hooks(self, index: int, value: Any) -> None:
        if torch.is_grad_enabled() and not in_backward():
            self._safely(self._note_hooked, index, value)

    def _note_hooked(self, index: int, value: Any) -> None:
        if any(_is_hooked(tensor) for tensor in tensors_of(value)):
            self._hooked.add(index)

    def end_step(self) -> None:
        """Ends a look at the end of its step."""
        self.conclude()
        later, self._later_hooks = self._later_hooks, []
        for hook in later:
            hook.remove()
        if self.is_looking and not self._block_hooks and not self._outer_hooks:
            self._forget()
        self.is_looking = False

    def _look_on(self) -> None:
        """Looks at what is wanted of the blocks in other passes of the step, as a penalty that takes gradients by name."""
        if not self.is_looking or self._later_hooks or self.was_compiled or is_compiled(self._given):
            return

        def after(index: int) -> Callable[..., None]:
            def look(_module: nn.Module, _: Any, output: Any) -> None:
                if not torch.compiler.is_compiling() and torch.is_grad_enabled() and not in_backward():
                    self._safely(self._look_at_later, index, output)

            return look

        self._later_hooks = [
            block.register_forward_hook(Hook(after(index))) for index, block in enumerate(self._blocks) if is_called(block)
        ]

    def conclude(self) -> None:
        """Ends a look at passes without seen outputs, as when a loop calls a method of the model that is not ``forward``."""
        if not (self._is_whole and self._block_hooks and self._called) or self.was_compiled:
            return
        try:
            self._note_last()
            self.view = self._make_view(None)
        except Exception:
            self.view = None
        self.close()

    def close(self) -> None:
        """Removes the hooks, and forgets the graph of the pass; what it showed stays."""
        self._remove()
        self._forget()

    def _remove(self) -> None:
        self._is_whole = False
        if self.was_compiled:
            # Compiled code has the hooks in it, where they do nothing.
            return
        hooks = [*self._block_hooks, *self._outer_hooks.values(), *self._later_hooks]
        self._block_hooks, self._outer_hooks, self._later_hooks = [], {}, []
        for hook in hooks:
            hook.remove()

    def _forget(self) -> None:
        self._called: list[int] = []
        self._inputs: dict[int | str | None, set[Edge]] = {}
        self._outputs: dict[int, set[Edge]] = {}
        #: The block that was called last, and what it gave: the model may put hooks on it before it calls the next one.
        self._last: tuple[int, list[torch.Tensor]] = (0, [])
        self._own: set[Any] = set()
        #: What the block that was called last in another pass of the step gave.
        self._later: set[Edge] = set()
        self._shared: set[Edge] = set()
        self._problem: str | None = None
        self._is_known = True

    def _look_at_later(self, index: int, output: Any) -> None:
        self._note_hooked(index, output)
        edges = set(edges_of(output))
        before = self._later if index > 0 else set()
        self._later = edges
        for node, _ in edges:
            node.register_prehook(self._on_gradients(index, before))

    def _on_compiling(self) -> None:
        self.was_compiled = True

    def _is_compiled_now(self) -> bool:
        """Returns whether a pass is compiled now, which is noted, or exported, which is not."""
        if is_exported():
            return True
        if torch.compiler.is_compiling():
            self._note()
            return True
        return False

    def _before(self, index: int) -> Callable[..., None]:
        def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._is_compiled_now() and block.training:
                self._safely(self._on_block, index, args, kwargs)

        return hook

    def _after(self, index: int) -> Callable[..., None]:
        def hook(block: nn.Module, _: Any, output: Any) -> None:
            if not torch.compiler.is_compiling() and block.training and not is_exported():
                self._safely(self._on_block_output, index, output)

        return hook

    def _safely(self, look: Callable[..., None], *arguments: Any) -> None:
        """Looks, in a pass of training: what goes wrong must not reach it."""
        try:
            look(*arguments)
        except Exception:
            # A model of an unexpected kind.
            self.view = None
            self.close()

    def _on_block(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            self._ran_without.add(index)
            return
        is_again = in_backward()
        if index in self._ran_without:
            self._ran_without.discard(index)
            self.was_reentrant = self.was_reentrant or is_again
        if self.was_reentrant or not self._is_whole:
            self._remove()
        elif not is_again:
            self._note_call(index, args, kwargs)

    def _on_block_output(self, index: int, output: Any) -> None:
        if not self._called or not torch.is_grad_enabled() or in_backward():
            return
        edges = set(edges_of(output))
        self._outputs[index] = self._outputs.get(index, set()) | edges
        self._note_last()
        self._last = (index, list(tensors_of(output)))
        for node, _ in edges:
            node.register_prehook(self._on_gradients(index, self._outputs.get(index - 1, set())))
        if index == 0:
            self._own |= self._walk(edges, set().union(*self._inputs.values())).nodes

    def _on_gradients(self, index: int, before: set[Edge]) -> Callable[[Any], None]:
        """Returns a hook on what a block gave, which is gone with the graph of the pass. ``before``: what the block before it gave."""

        def look(_: Any) -> None:
            with contextlib.suppress(Exception):
                wanted = wanted_by_name()
                if wanted is not None:
                    self._by_name.add(index)
                    # Leaves have no node here, where gradients are off; they are nothing that a block gave.
                    if before and not before.isdisjoint((tensor.grad_fn, tensor.output_nr) for tensor in tensors_of(wanted)):
                        self._by_name.add(index - 1)

        return look

    def _walk(self, edges: Iterable[Edge], stops: Collection[Edge], only_from: Collection[Any] | None = None) -> Found:
        found = walk(edges, stops, self._weights, only_from)
        self.was_reentrant = self.was_reentrant or found.is_reentrant
        self._is_known = self._is_known and found.is_known
        return found

    def _note_call(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Looks at how a block is called after those before."""
        if len(self._called) > PASSES * len(self._blocks):
            # The module that has the blocks inside is never called.
            self.close()
            return
        outputs: set[Edge] = set().union(*self._outputs.values())
        if index == 0:
            self._note_hooked(0, [args, kwargs])
            if self._called and self._walk(edges_of([args, kwargs]), outputs).stopped_at:
                self._problem = "the blocks are called several times in a pass, each time with what they gave before"
            given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
            for key, value in given:
                # What is inside of a list is not detached.
                place = key if isinstance(value, torch.Tensor) else None
                self._inputs.setdefault(place, set()).update(edges_of(value))
        elif self._called:
            last = self._called[-1]
            first: set[Edge] = set().union(*self._inputs.values())
            met = self._walk(edges_of([args, kwargs]), outputs | first).stopped_at
            self._shared |= met & first
            if index <= last or (self._outputs.get(last) and not met & self._outputs[last]):
                self._problem = self._problem or f"the blocks are no chain: block {index} is not called with what block {last} gave"
        if index == 0 or self._called:
            self._called.append(index)

    def _on_outputs(self, module: nn.Module, _: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and module.training and not is_exported():
            self._safely(self._complete, module, output)

    def _complete(self, module: nn.Module, output: Any) -> None:
        """Completes the view at the outputs of a module that has the blocks inside; those of the outermost one are last, and count."""
        if not torch.is_grad_enabled() or in_backward():
            return
        if not self._called:
            # Blocks were compiled each by itself, run without gradients, or were left out in this pass.
            self._walk(edges_of(output), ())
            self._is_known = True
            return
        if not self.was_compiled:
            hooks, self._block_hooks = [*self._block_hooks, self._outer_hooks.pop(module, None)], []
            for hook in hooks:
                if hook is not None:
                    hook.remove()
        self._note_last()
        self.view = self._make_view(output)
        self._look_on()

    def _note_last(self) -> None:
        (index, tensors), self._last = self._last, (0, [])
        self._note_hooked(index, tensors)

    def _make_view(self, output: Any) -> View | None:
        shared = frozenset(key for key, edges in self._inputs.items() if key is not None and edges and edges <= self._shared)
        detached: set[Edge] = set()
        for key, edges in self._inputs.items():
            if key is not None and key not in shared:
                detached |= edges
        front = self._walk(detached, ())
        # As it is looked at in each pass while blocks are frozen.
        leaves = leaves_of(detached)
        foreign = leaves if isinstance(leaves, str) else self._refusal_of_leaves(front.others)
        if foreign is not None:
            return View(refusal=foreign)
        reached = None if output is None else self._walk(edges_of(output), detached, self._own)
        if not self._is_known:
            return None
        problem = self._problem
        if problem is None and shared and not detached:
            problem = "later blocks take the input of the first one as well: gradients would go through frozen blocks all the same"
        return View(
            refusal=problem,
            front=front.weights,
            reached=None if reached is None else set(reached.weights),
            shared_inputs=shared,
        )

    def _refusal_of_leaves(self, leaves: Iterable[torch.Tensor]) -> str | None:
        """Refuses if something else than weights of the model is in front of the blocks, and wants gradients."""
        for leaf in leaves:
            if not isinstance(leaf, nn.Parameter):
                if self._made is None or not self._made.has(leaf):
                    return INPUT
            elif self._own_weights is not None and not self._own_weights.has(leaf):
                return FOREIGN
        return None


def walk(edges: Iterable[Edge], stops: Collection[Edge], known: Collection[int], only_from: Collection[Any] | None = None) -> Found:
    """Walks the graph of gradients backwards from ``edges``, but not over ``stops``: from nowhere, or not from ``only_from``."""
    found = Found()
    waiting: list[Edge] = []
    for edge in edges:
        if only_from is None and edge in stops:
            found.stopped_at.add(edge)
        else:
            waiting.append(edge)
    while waiting:
        node, _ = waiting.pop()
        if node in found.nodes:
            continue
        found.nodes.add(node)
        found.is_reentrant = found.is_reentrant or node.name().endswith("CheckpointFunctionBackward")
        variable = getattr(node, "variable", None)
        if isinstance(variable, nn.Parameter) and id(variable) in known:
            found.weights[id(variable)] = variable
        elif variable is not None:
            found.others.append(variable)
            found.is_known = found.is_known and not isinstance(variable, nn.Parameter)
        for edge in node.next_functions:
            if edge[0] is None:
                continue
            if edge in stops and (only_from is None or node in only_from):
                found.stopped_at.add(edge)
            else:
                waiting.append(edge)
    return found


def leaves_of(edges: Iterable[Edge]) -> list[torch.Tensor] | str:
    """Returns what the gradients of these places end in, or why that is not known. It runs in each pass."""
    waiting = [node for node, _ in edges]
    seen: set[Any] = set()
    leaves: list[torch.Tensor] = []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.append(variable)
            continue
        if type(node).__name__.endswith("CheckpointFunctionBackward"):
            return HIDDEN
        if len(seen) > MOST_NODES:
            return LONG
        waiting += [following for following, _ in node.next_functions if following is not None]
    return leaves


def is_closed(own: OwnWeights) -> bool:
    """Returns whether the code that is compiled now is given nothing of which gradients are wanted but the model's own weights.

    Compiled code is for inputs that all want gradients or not as those of now do. Raises if PyTorch does not show them.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    graph = InstructionTranslator.current_tx().output.root_tracer.graph
    for node in graph.find_nodes(op="placeholder"):
        given = node.meta["grapharg"].example
        if isinstance(given, torch.Tensor) and given.requires_grad and not (isinstance(given, nn.Parameter) and own.has(given)):
            return False
    return True


def wanted_by_name() -> Any:
    """Returns of what alone the backward pass that runs now computes gradients; ``None``: of all weights. Call it in a hook of that pass.

    The engine does not show it, but the caller's frame does. On a GPU hooks run in another thread than the caller.
    """
    frames = sys._current_frames()
    caller: Any = None
    try:
        for frame in (frames.pop(threading.get_ident()).f_back, *frames.values()):
            caller = frame
            while caller is not None:
                if caller.f_code in BACKWARD:
                    wanted = caller.f_locals.get("inputs")
                    return None if isinstance(wanted, (tuple, list)) and not wanted else wanted
                caller = caller.f_back
        return None
    finally:
        # Frames keep what is in them, as a job that nothing else refers to any more.
        frame = caller = None
        frames.clear()


def _is_hooked(tensor: torch.Tensor) -> bool:
    """Returns whether the loop wants the gradient of an activation. PyTorch's wrappers have hooks of their own on these."""
    if tensor.is_leaf:
        return False
    hooks = (tensor._backward_hooks or {}).values()
    own = [hook for hook in hooks if not str(getattr(getattr(hook, "func", hook), "__module__", "")).startswith("torch.distributed")]
    return bool(tensor.retains_grad or own)


def edges_of(value: Any, depth: int = 4) -> Iterator[Edge]:
    """Yields the places in the graph of all tensors in a value of which gradients are wanted."""
    for tensor in tensors_of(value, depth):
        node = tensor.grad_fn if tensor.grad_fn is not None else tensor.view_as(tensor).grad_fn.next_functions[0][0]
        yield (node, tensor.output_nr)


def tensors_of(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Yields all tensors in a value of which gradients are wanted."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif depth > 0:
        parts: Iterable[Any] = ()
        if isinstance(value, Mapping):
            parts = list(value.values())
        elif isinstance(value, (list, tuple)):
            parts = value
        elif is_dataclass(value):
            parts = [getattr(value, entry.name, None) for entry in fields(value)]
        for part in parts:
            yield from tensors_of(part, depth - 1)


def in_backward() -> bool:
    """Returns whether a backward pass runs in this thread."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1
