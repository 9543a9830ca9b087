"""A small GPT, and text to train it on: nothing is downloaded."""

from __future__ import annotations

import functools
import pydoc_data.topics
from collections.abc import Iterator

import torch
from torch import nn

VOCABULARY = 128
CONTEXT = 32


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        parts = self.mix(self.before(hidden)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.wide(self.after(hidden))


class SmallGpt(nn.Module):
    """A GPT of about a million parameters at its defaults, with tied embeddings; trained on characters."""

    def __init__(self, blocks: int = 6, width: int = 112, tied: bool = True, checkpointing: bool | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        #: ``use_reentrant`` of gradient checkpointing; ``None``: without it.
        self.checkpointing = checkpointing
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(text) + self.position(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            if self.checkpointing is None or not self.training:
                hidden = block(hidden)
            else:
                hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=self.checkpointing)
        return self.head(self.norm(hidden))


def loss_of(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    logits = model(text[:, :-1])
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), text[:, 1:].reshape(-1))


@functools.cache
def corpus() -> torch.Tensor:
    """The documentation of Python's own topics, as characters; made once a process."""
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    return torch.tensor([min(ord(character), VOCABULARY - 1) for character in text])


def batches(count: int, size: int = 8, seed: int = 0, rank: int = 0) -> Iterator[torch.Tensor]:
    """Yields random stretches of the corpus."""
    text = corpus()
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    for _ in range(count):
        starts = torch.randint(len(text) - CONTEXT - 1, (size,), generator=generator)
        yield torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
