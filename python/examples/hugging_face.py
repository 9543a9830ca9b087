"""Hugging Face: one line, the callback.

python -m examples.hugging_face --steps 500
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from eadt.hf import EadtCallback
from examples.gpt import CONTEXT, VOCABULARY, batches

BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    torch.manual_seed(0)
    size = {"n_positions": CONTEXT, "n_embd": 112, "n_layer": 6, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **size))
    rows = torch.cat(list(batches(64, BATCH)))[:, :CONTEXT]
    arguments = TrainingArguments(
        output_dir=str(options.folder / "hugging-face"),
        max_steps=options.steps,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        logging_steps=20,
        report_to=[],
    )
    dataset = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[EadtCallback()])
    print(f"loss {trainer.train().training_loss:.3f} on average of {options.steps} steps")


if __name__ == "__main__":
    main()
