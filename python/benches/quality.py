"""What freezing costs in quality, beside training for fewer steps: a small GPT, the same text and seeds for all.

``cargo xtask bench quality``; or in the folder ``python``: ``PYTHONPATH=src:. python3 benches/quality.py [STEPS [SEEDS]]``. Needs PyTorch.
``rule`` freezes as the ``layers`` controller does, without its guard of the validation loss: nothing in the first quarter or while the
learning rate rises, then the next block once its plasticity was below a tenth of its own peak in three reports running, at most half of the
blocks. ``linear`` freezes as many after fixed parts of the steps. Each has its control: nothing frozen, and as many steps as cost the same
work, with a learning rate that falls over those. Work is what PyTorch counts as floating-point operations: of a step, forward and backward,
and of each measurement of plasticity.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import torch
from examples.gpt import CONTEXT, SmallGpt, corpus, loss_of
from torch.utils.flop_counter import FlopCounterMode

from eadt.freeze import BlockFreezer
from eadt.plasticity import PlasticityMeter

BATCH = 8
BLOCKS = 6
MOST_FROZEN = BLOCKS // 2
START, RATIO, REPORTS = 0.25, 0.1, 3
#: Reports of plasticity in a run.
REPORTS_IN_RUN = 50
LINEAR = (0.25, 0.5, 0.75)
LEARNING_RATE, WARM_UP = 1e-3, 0.05
HELD_OUT, EVALUATION_BATCHES = 0.1, 64


class Text:
    """The corpus: its end is held out."""

    def __init__(self) -> None:
        everything = corpus()
        cut = int(len(everything) * (1 - HELD_OUT))
        self.training, self.held_out = everything[:cut], everything[cut:]

    @staticmethod
    def batch(text: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])


@dataclass
class Rule:
    """The rule of the ``layers`` controller."""

    peaks: list[float] = field(default_factory=lambda: [0.0] * BLOCKS)
    low: list[int] = field(default_factory=lambda: [0] * BLOCKS)

    def frozen(self, frozen: int, part: float, is_warming_up: bool, plasticity: list[float | None] | None) -> int:
        """Takes in a report and returns how many blocks are to be frozen."""
        for index, value in enumerate(plasticity or []):
            if value is None or index < frozen:
                self.low[index] = 0
                continue
            self.peaks[index] = max(self.peaks[index], value)
            self.low[index] = self.low[index] + 1 if value < RATIO * self.peaks[index] else 0
        while part >= START and not is_warming_up and frozen < MOST_FROZEN and self.low[frozen] >= REPORTS:
            frozen += 1
        return frozen


@dataclass
class Run:
    loss: float
    work: float
    #: Steps at which another block was frozen.
    frozen_at: list[int]


def learning_rate(step: int, steps: int) -> float:
    """Rises in the first twentieth, then falls to a tenth along a cosine."""
    part = step / steps
    if part < WARM_UP:
        return LEARNING_RATE * part / WARM_UP
    return LEARNING_RATE * (0.55 + 0.45 * math.cos(math.pi * (part - WARM_UP) / (1 - WARM_UP)))


@dataclass
class Work:
    """Floating-point operations: of a step with 0, 1, 2, 3 blocks frozen, and of a measurement of plasticity."""

    steps: list[float]
    measurement: float


def count_work() -> Work:
    text = torch.zeros(BATCH, CONTEXT + 1, dtype=torch.long)
    model = SmallGpt(blocks=BLOCKS)
    meter = PlasticityMeter(model, model.blocks)
    meter.keep_batch(text[:, :-1])
    # The first one compares with nothing.
    meter.measure()
    return Work([work_of_step(frozen, text) for frozen in range(MOST_FROZEN + 1)], operations(meter.measure))


def work_of_step(frozen: int, text: torch.Tensor) -> float:
    """Counts a step of a model of its own: the counter's hooks want gradients of activations, and a freezer that saw them refuses."""
    model = SmallGpt(blocks=BLOCKS)
    freezer = BlockFreezer(model)
    loss_of(model, text).backward()
    model.zero_grad()
    freezer.freeze(frozen)
    return operations(lambda: loss_of(model, text).backward())


def operations(call: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops())


def evaluate(model: SmallGpt, text: Text) -> float:
    generator = torch.Generator().manual_seed(12345)
    model.eval()
    with torch.no_grad():
        losses = [float(loss_of(model, text.batch(text.held_out, generator))) for _ in range(EVALUATION_BATCHES)]
    model.train()
    return statistics.mean(losses)


def train(text: Text, seed: int, steps: int, work: Work, how: str) -> Run:
    """Trains once; ``how`` is ``nothing``, ``rule`` or ``linear``."""
    torch.manual_seed(seed)
    model = SmallGpt(blocks=BLOCKS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    freezer, meter, rule = BlockFreezer(model, [optimizer]), PlasticityMeter(model, model.blocks), Rule()
    generator = torch.Generator().manual_seed(1000 + seed)
    if how == "rule":
        meter.keep_batch(text.batch(text.training, torch.Generator().manual_seed(999))[:, :-1])
    run = Run(0.0, 0.0, [])
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        frozen = freezer.frozen
        if how == "rule" and step % max(1, steps // REPORTS_IN_RUN) == 0:
            frozen = rule.frozen(frozen, step / steps, step < WARM_UP * steps, meter.measure())
            run.work += work.measurement
        elif how == "linear":
            frozen = sum(step >= part * steps for part in LINEAR)
        if frozen != freezer.frozen:
            run.frozen_at += [step] * (frozen - freezer.frozen)
            freezer.freeze(frozen)
        optimizer.zero_grad()
        loss_of(model, text.batch(text.training, generator)).backward()
        optimizer.step()
        run.work += work.steps[freezer.frozen]
    run.loss = evaluate(model, text)
    return run


KINDS = ("rule", "linear")


def runs_of_seed(seed: int, steps: int) -> dict[str, Run]:
    """Trains with one seed in each way, and for each way its control."""
    torch.set_num_threads(1)
    text, work, begun = Text(), count_work(), time.process_time()
    runs = {"nothing frozen": train(text, seed, steps, work, "nothing")}
    full = runs["nothing frozen"].work
    for kind in KINDS:
        runs[kind] = train(text, seed, steps, work, kind)
        fewer = max(1, round(steps * runs[kind].work / full))
        runs[f"{kind}, control"] = train(text, seed, fewer, work, "nothing")
    for name, run in runs.items():
        print(f"  seed {seed}: {name:<15} loss {run.loss:.4f}, work {run.work / full:.3f}, frozen at {run.frozen_at}")
    print(f"  seed {seed}: {time.process_time() - begun:.0f} s of CPU", flush=True)
    return runs


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    work = count_work()
    parts = ", ".join(f"{part / work.steps[0]:.3f}" for part in work.steps)
    print(
        f"{steps} steps of {BATCH} x {CONTEXT} characters, {seeds} seeds; work of a step with 0 to {MOST_FROZEN} blocks frozen: {parts}, "
        f"of a measurement of plasticity: {work.measurement / work.steps[0]:.3f}",
        flush=True,
    )
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(seeds, os.cpu_count() or 1), context) as pool:
        every = list(pool.map(runs_of_seed, range(seeds), [steps] * seeds))
    print("\nloss on held-out text against nothing frozen, %: mean [lowest .. highest]")
    for kind in KINDS:
        print(f"  {row_of(kind, every)}")


def row_of(kind: str, every: list[dict[str, Run]]) -> str:
    """Returns what a way to freeze saved and cost in the runs of all seeds, beside its control."""

    def rise(name: str) -> str:
        values = [(runs[name].loss / runs["nothing frozen"].loss - 1) * 100 for runs in every]
        return f"{statistics.mean(values):+.2f} [{min(values):+.2f} .. {max(values):+.2f}]"

    saved = statistics.mean((1 - runs[kind].work / runs["nothing frozen"].work) * 100 for runs in every)
    return f"{kind:<7} work saved {saved:.1f} %: {rise(kind)}; fewer steps for the same work: {rise(f'{kind}, control')}"


if __name__ == "__main__":
    main()
