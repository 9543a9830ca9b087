"""DeepSpeed with ZeRO-3: a parameter group for each block, so that frozen weights do not move.

deepspeed --module examples.deepspeed_zero3 --steps 500
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import deepspeed
import torch

import eadt.deepspeed
from examples.gpt import SmallGpt, batches, loss_of

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "zero_optimization": {"stage": 3},
    # PyTorch's own optimizer: DeepSpeed's for CPUs is compiled for minutes.
    "zero_allow_untested_optimizer": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    # The launcher gives it.
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = SmallGpt()
    optimizer = torch.optim.AdamW(eadt.deepspeed.parameter_groups(model), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    with eadt.deepspeed.wrap(engine) as job:
        for text in batches(options.steps, rank=engine.global_rank):
            loss = loss_of(engine, text.to(engine.device))
            engine.backward(loss)
            engine.step()
            job.step(samples=len(text), loss=loss)
            if job.checkpoint_due():
                engine.save_checkpoint(str(options.folder / "deepspeed"))
                job.checkpointed()
        if engine.global_rank == 0:
            print(f"loss {loss.item():.3f} after {options.steps} steps, {job.frozen_layers} blocks frozen")


if __name__ == "__main__":
    main()
