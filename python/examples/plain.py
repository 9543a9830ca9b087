"""A plain loop, on one process or on several with torchrun.

python -m examples.plain --steps 500
torchrun --nproc-per-node 2 -m examples.plain --steps 500
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import eadt
from examples.gpt import SmallGpt, batches, loss_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rank, together = int(os.environ.get("RANK", "0")), "WORLD_SIZE" in os.environ
    torch.manual_seed(0)
    model: nn.Module = SmallGpt().to(device)
    plain = model
    if together:
        distributed.init_process_group(os.environ.get("BACKEND", "nccl" if device == "cuda" else "gloo"))
        # Frozen blocks get no gradients: without this the ranks would wait for them.
        model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with eadt.job(model, optimizer, layers="auto") as job:
        for step, text in enumerate(batches(options.steps, rank=rank), start=1):
            with job.autocast():
                loss = loss_of(model, text.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            job.step(samples=len(text), loss=loss)
            # The same answer on every rank.
            if job.checkpoint_due() or step % 200 == 0:
                if rank == 0:
                    options.folder.mkdir(parents=True, exist_ok=True)
                    torch.save(plain.state_dict(), options.folder / "plain.pt")
                job.checkpointed()
        if rank == 0:
            print(f"loss {loss.item():.3f} after {options.steps} steps, {job.frozen_layers} blocks frozen")
    if together:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
