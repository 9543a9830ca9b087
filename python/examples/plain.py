"""A plain loop, on one process or on several with torchrun. It goes on from the checkpoint in its folder.

python -m examples.plain --steps 500
torchrun --nproc-per-node 2 -m examples.plain --steps 500
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import eadt
from examples.gpt import SmallGpt, batches, loss_of


def load(path: Path, rank: int) -> dict[str, Any] | None:
    """Returns what rank 0 finds in its folder, on all ranks."""
    found = [torch.load(path, map_location="cpu", weights_only=True) if rank == 0 and path.exists() else None]
    if distributed.is_initialized():
        distributed.broadcast_object_list(found)
    return found[0]


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint that is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


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
    path, done = options.folder / "plain.pt", 0
    kept = load(path, rank)
    job = eadt.job(model, optimizer, layers="auto")
    if kept is not None:
        plain.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["steps"]
        # Before the start: a job that goes on keeps what it was asked.
        job.steps_total, job.samples_total = done, kept["samples"]
    if done >= options.steps:
        # A StatefulSet starts it again when it has ended: then it is no run of its own.
        print(f"{done} steps are done already")
        return
    with job:
        for step, text in enumerate(batches(options.steps - done, seed=done, rank=rank), start=done + 1):
            with job.autocast():
                loss = loss_of(model, text.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            job.step(samples=len(text), loss=loss)
            # The same answer on every rank.
            if job.checkpoint_due() or step % 200 == 0 or step == options.steps:
                if rank == 0:
                    state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}
                    save(path, {**state, "steps": step, "samples": job.samples_total})
                job.checkpointed()
        if rank == 0:
            print(f"loss {loss.item():.3f} after {options.steps} steps, {job.frozen_layers} blocks frozen")
    if together:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
