"""Which modules are the blocks of a model, from its structure alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from torch import nn

#: Classes that call the model that they have as ``module``, and no more. Others may have such an attribute, too.
WRAPPERS: Final = frozenset({"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "_FabricModule"})
#: Classes that have parts of the weights on each rank.
SHARDING: Final = frozenset({"FullyShardedDataParallel", "FSDPModule"})


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model inside DDP, FSDP, DeepSpeed, Fabric and torch.compile."""
    while True:
        names = {kind.__name__ for kind in type(model).__mro__}
        name = "_orig_mod" if "OptimizedModule" in names else "module" if names & WRAPPERS else None
        inner = getattr(model, name, None) if name is not None else None
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_sharded(model: nn.Module) -> bool:
    """Returns whether ranks have parts of the weights, and exchange them in a pass (FSDP, ZeRO-3, DTensor)."""
    if any(SHARDING.intersection(kind.__name__ for kind in type(module).__mro__) for module in model.modules()):
        return True
    return any(hasattr(parameter, "to_local") or hasattr(parameter, "ds_id") for parameter in model.parameters())


def is_called(module: nn.Module) -> bool:
    """Returns whether a module has a forward pass: a list of modules has none, and hooks on it never run."""
    # One that torch.compile made has it in the instance.
    return "forward" in vars(module) or getattr(type(module), "forward", None) is not nn.Module.forward


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Returns the blocks of a model from the input side; empty if it has none.

    They are a list of modules of one kind that is inside of no other such list: experts of a block are no blocks. Of several lists the
    first one with at least half of the trainable weights of the largest: of an encoder and a decoder, the encoder's.
    """
    model = unwrapped(model)
    found = list(_lists_of_blocks(model, set()))
    if not found:
        return []
    # Ranks have different parts of the weights, and must find the same blocks.
    is_flat = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    sizes = [_trainable_size(blocks, is_flat) for blocks in found]
    if max(sizes) == 0:
        sizes = [sum(1 for block in blocks for _ in block.parameters()) for blocks in found]
    return next(blocks for blocks, size in zip(found, sizes, strict=True) if 2 * size >= max(sizes))


def owner_of(model: nn.Module, blocks: Sequence[nn.Module]) -> nn.Module | None:
    """Returns the module that has the list of these blocks and calls them; ``None`` if none has."""
    for parent in unwrapped(model).modules():
        for child in parent.children():
            if isinstance(child, (nn.ModuleList, nn.Sequential)) and any(block is entry for block in blocks[:1] for entry in child):
                return parent
    return None


def path_to(module: nn.Module, block: nn.Module) -> list[nn.Module]:
    """Returns the modules that have a block inside, from the outermost one; empty if it is not inside of ``module``."""
    for child in module.children():
        if child is block:
            return [module]
        below = path_to(child, block)
        if below:
            return [module, *below]
    return []


def size_of(parameter: Any) -> int:
    """Returns the numbers that a weight has on all ranks together, as far as it tells."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def embedding_weights(model: nn.Module) -> set[int]:
    """Returns the identities of the weights of embeddings."""
    embeddings = [module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    return {id(parameter) for embedding in embeddings for parameter in embedding.parameters()}


def tied_embeddings(model: nn.Module) -> set[int]:
    """Returns the identities of weights of embeddings that the model has at another place, too, as at its head."""
    places: dict[int, int] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        for parameter in module._parameters.values():
            if parameter is not None:
                places[id(parameter)] = places.get(id(parameter), 0) + 1
    return {identity for identity in embedding_weights(model) if places.get(identity, 0) > 1}


def _trainable_size(blocks: Sequence[nn.Module], is_flat: bool) -> int:
    weights = {id(parameter): parameter for block in blocks for parameter in block.parameters() if parameter.requires_grad}
    return sum(1 if is_flat else size_of(parameter) for parameter in weights.values())


def _lists_of_blocks(module: nn.Module, passed: set[int], name: str = "") -> Iterator[list[nn.Module]]:
    """Yields the outermost lists of modules of one kind, in their order; each module is looked at once."""
    if id(module) in passed or "expert" in name.lower():
        return
    passed.add(id(module))
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        entries = list(module)
        if len(entries) > 1 and not any(is_called(entry) for entry in entries):
            # Lists of lists: only the calls of their parts show which of them are blocks.
            return
        if _are_blocks(module, entries):
            yield entries
            return
    for child_name, child in module.named_children():
        yield from _lists_of_blocks(child, passed, child_name)


def _are_blocks(parent: nn.Module, entries: Sequence[nn.Module]) -> bool:
    """Returns whether all entries of a list are of one kind and have weights; of a ``ModuleList`` some may be of another kind."""
    if len(entries) < 2 or not all(is_called(entry) and next(entry.parameters(), None) is not None for entry in entries):
        return False
    kinds = {_kind(unwrapped(entry)) for entry in entries}
    # As layers of attention and layers of another kind in turns; parts of a block are all of different kinds.
    return len(kinds) == 1 or (isinstance(parent, nn.ModuleList) and 2 * len(kinds) <= len(entries))


def _kind(module: nn.Module) -> object:
    """Returns what two blocks have in common: their class, and for a sequence the classes of its parts."""
    if isinstance(module, nn.Sequential):
        return frozenset(type(unwrapped(child)) for child in module)
    return type(module)
