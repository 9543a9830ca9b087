"""Lightning: the callback in the Trainer.

python -m examples.lightning_gpt --steps 500
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from eadt.lightning import EadtCallback
from examples.gpt import SmallGpt, batches, loss_of


class Gpt(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = SmallGpt()

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return loss_of(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    torch.manual_seed(0)
    module = Gpt()
    text = torch.cat(list(batches(64)))
    trainer = pl.Trainer(
        max_steps=options.steps,
        max_epochs=-1,
        callbacks=[EadtCallback(checkpoint_folder=str(options.folder / "lightning"))],
        default_root_dir=options.folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(module, DataLoader(list(text), batch_size=8, shuffle=True))
    print(f"loss {loss_of(module.model, text[:64]).item():.3f} after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
