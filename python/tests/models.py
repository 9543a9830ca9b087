"""What tests look at in the models of the examples."""

from __future__ import annotations

import torch
from examples.gpt import CONTEXT, VOCABULARY, Block, SmallGpt, batches, corpus, loss_of
from torch import nn

__all__ = ["CONTEXT", "VOCABULARY", "Block", "SmallGpt", "batches", "corpus", "loss_of", "moved", "weights"]


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def moved(module: nn.Module, before: list[torch.Tensor]) -> float:
    """Returns the greatest change of any weight."""
    pairs = zip(module.parameters(), before, strict=True)
    return max(float((now.detach() - then).abs().max()) for now, then in pairs)
