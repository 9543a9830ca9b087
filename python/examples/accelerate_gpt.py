"""Hugging Face Accelerate: a plain loop with what `prepare` made.

python -m examples.accelerate_gpt --steps 500
accelerate launch -m examples.accelerate_gpt --steps 500
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs

import eadt.accelerate
from examples.gpt import SmallGpt, batches, loss_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    torch.manual_seed(0)
    model = SmallGpt()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    with eadt.accelerate.job(accelerator, model, optimizer) as job:
        for text in batches(options.steps, rank=accelerator.process_index):
            loss = loss_of(model, text.to(accelerator.device))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            job.step(samples=len(text), loss=loss)
            if job.checkpoint_due():
                accelerator.save_state(str(options.folder / "accelerate"))
                job.checkpointed()
        accelerator.print(f"loss {loss.item():.3f} after {options.steps} steps, {job.frozen_layers} blocks frozen")


if __name__ == "__main__":
    main()
