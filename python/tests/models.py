"""What tests look at in the models of the examples."""

from __future__ import annotations

import os

import torch
import torch.distributed as distributed
from examples.gpt import CONTEXT, VOCABULARY, Block, SmallGpt, batches, corpus, loss_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["CONTEXT", "VOCABULARY", "Block", "SmallGpt", "batches", "corpus", "join_ranks", "loss_of", "moved", "weights"]


def join_ranks(rank: int, folder: str) -> tuple[SmallGpt, DistributedDataParallel, torch.optim.Optimizer]:
    """Joins the two ranks of the job `team/gpt`, and returns their model, alone and shared, with its optimizer."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), EADT_WORKLOAD="team/gpt")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    plain = SmallGpt()
    model = DistributedDataParallel(plain, find_unused_parameters=True)
    return plain, model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def moved(module: nn.Module, before: list[torch.Tensor]) -> float:
    """Returns the greatest change of any weight."""
    pairs = zip(module.parameters(), before, strict=True)
    return max(float((now.detach() - then).abs().max()) for now, then in pairs)
