"""Which blocks are found, what a freeze of them would stop, and what is refused: models of many forms, without a framework."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import eadt
from eadt.directives import Directive
from eadt.forward import HIDDEN, LONG, MOST_NODES, edges_of, leaves_of, wanted_by_name
from eadt.freeze import BlockFreezer, find_blocks
from tests.models import moved, weights
from tests.servers import Recorder

torch.set_num_threads(1)

WIDTH = 16


class Part(nn.Module):
    """A block: a residual of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(torch.relu(self.one(x)))


class OtherPart(Part):
    pass


class Model(nn.Module):
    """Four blocks between an embedding, or another front, and a head."""

    def __init__(self, front: nn.Module | None = None, parts: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.front = nn.Embedding(WIDTH, WIDTH) if front is None else front
        self.blocks = nn.ModuleList([Part() for _ in range(4)] if parts is None else parts)
        self.head = nn.Linear(WIDTH, 4)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.run(self.front(x)))


class Experts(nn.Module):
    def __init__(self, name: str = "experts") -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 8)
        self.add_module(name, nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x).softmax(-1)
        return x + sum(gate[..., index : index + 1] * expert(x) for index, expert in enumerate(getattr(self, self.name)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.norm(self.convolution(x)))


class Stages(nn.Module):
    """As torchvision's ResNet: four stages beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        for index, blocks in enumerate((2, 2, 6, 3), 1):
            self.add_module(f"layer{index}", nn.Sequential(*(Residual() for _ in range(blocks))))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x))))).mean((2, 3)))


class Conditioned(Model):
    """As a diffusion transformer: each block takes a condition, too."""

    class Block(Part):
        def __init__(self) -> None:
            super().__init__()
            self.of_condition = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(x * self.of_condition(condition))

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), [self.Block() for _ in range(3)])
        self.condition = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        condition = self.condition(x)
        hidden = self.front(x)
        for block in self.blocks:
            hidden = block(hidden, condition)
        return self.head(hidden)


class Skip(Model):
    """A way past the blocks, as in a U-Net."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x)
        return self.head(x + self.run(x))


class Repeated(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.run(self.run(self.front(x))))


class Twins(Model):
    """Two inputs through the same blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.run(self.front(x)) * self.run(self.front(x.flip(0))))


class Parallel(Model):
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return sum(block(x) for block in self.blocks)  # type: ignore[return-value]


class Checkpointed(Model):
    """Reentrant checkpointing of every second block, or of all."""

    every_second = True

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x) if self.every_second and index % 2 == 0 else checkpoint(block, x, use_reentrant=True)
        return x


def texts() -> torch.Tensor:
    return torch.randint(WIDTH, (4, 5))


def vectors() -> torch.Tensor:
    return torch.randn(4, WIDTH)


def pictures() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8)


def frozen_but(model: nn.Module, *trained: nn.Module) -> nn.Module:
    model.requires_grad_(False)
    for module in trained:
        module.requires_grad_(True)
    return model


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


class TestBlocks(unittest.TestCase):
    def test_lists_inside_of_blocks_are_no_blocks(self) -> None:
        for name in ("experts", "branches"):
            model = Model(parts=[Experts(name) for _ in range(4)])
            self.assertEqual(find_blocks(model), list(model.blocks))

    def test_blocks_of_two_kinds_in_turns_are_found_and_not_the_experts_inside(self) -> None:
        model = Model(parts=[Part() if index % 2 else Experts() for index in range(4)])
        self.assertEqual(find_blocks(model), list(model.blocks))
        self.assertEqual(find_blocks(Model(parts=[Part(), OtherPart()])), [])

    def test_lists_of_lists_are_refused_since_nobody_calls_them(self) -> None:
        model = Model(parts=[nn.ModuleList([Part(), Part()]) for _ in range(4)])
        self.assertEqual(find_blocks(model), [])
        self.assertIn("ModuleList, which is never called", BlockFreezer(model, blocks=list(model.blocks)).refusal(1) or "")

    def test_of_several_lists_the_first_with_half_of_the_largest_is_taken(self) -> None:
        class Both(nn.Module):
            def __init__(self, encoder: int, decoder: int) -> None:
                super().__init__()
                self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(16))
                self.encoder = nn.ModuleList(Part() for _ in range(encoder))
                self.decoder = nn.ModuleList(Part() for _ in range(decoder))

        for encoder, decoder, expected in ((3, 4, 3), (2, 6, 6)):
            self.assertEqual(len(find_blocks(Both(encoder, decoder))), expected)
        both = Both(3, 8)
        both.decoder.requires_grad_(False)
        self.assertEqual(find_blocks(both), list(both.encoder), "a teacher does not train")

    def test_nested_stages_are_the_blocks(self) -> None:
        model = Model(nn.Identity(), [nn.Sequential(*(Part() for _ in range(blocks))) for blocks in (2, 6, 2)])
        self.assertEqual(find_blocks(model), list(model.blocks))

    def test_blocks_that_were_compiled_each_are_found(self) -> None:
        self.assertEqual(len(find_blocks(Model(parts=[compiled(Part()) for _ in range(4)]))), 4)


class Trains(unittest.TestCase):
    """Trains models by a job that is asked to freeze blocks."""

    def setUp(self) -> None:
        torch.manual_seed(0)
        self.server = Recorder()
        self.addCleanup(self.server.close)
        #: Weights of the part in front when the directive was taken up.
        self.stood: list[torch.Tensor] = []

    def asked(
        self,
        model: nn.Module,
        batch: Callable[[], torch.Tensor],
        layers: int = 1,
        watched: nn.Module | None = None,
        blocks: list[nn.Module] | None = None,
        set_to_none: bool = True,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> tuple[str | None, float, eadt.job]:
        """Returns the last answer, how far the watched module moved after it was given, and the job; checks that training goes on."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = optimizer or torch.optim.AdamW(trained, lr=1e-2)
        watched, stood = watched or model, None
        options = {"url": self.server.url, "workload": "n/a", "agree_every": 1}
        with eadt.job(model, optimizer, layers="auto" if blocks is None else blocks, **options) as job:
            for step in range(20):
                if step == 3:
                    job.client._answer = (1, Directive("d-1", frozen_prefix_layers=layers))
                model(batch()).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)
                job.step(samples=4)
                if job.checkpoint_due():
                    job.checkpointed()
                    stood = weights(watched)
                elif stood is None and job.answers:
                    stood = weights(watched)
        self.assertTrue(job.answers and job._checked is None)
        self.assertIsNone(job.client.last_error)
        return job.answers[-1][1], moved(watched, stood or []), job


class TestFront(Trains):
    def test_nothing_left_to_train_is_refused_and_training_goes_on(self) -> None:
        adapters, embeddings, prompts = Model(), Model(), Model()
        frozen_but(adapters, *adapters.blocks[:2])
        for model in (embeddings, prompts):
            frozen_but(model, model.front)
        cases = {"adapters in the first blocks": adapters, "new embeddings": embeddings, "soft prompts, compiled": compiled(prompts)}
        for name, model in cases.items():
            with self.subTest(name):
                answer, _, job = self.asked(model, texts, 2)
                self.assertIn("nothing would be left to train", answer or "")
                self.assertEqual(job.frozen_layers, 0)

    def test_what_trains_behind_the_blocks_is_enough(self) -> None:
        model = Model()
        answer, front, _ = self.asked(frozen_but(model, model.front, model.head), texts, 2, model.front)
        self.assertEqual((answer, front), (None, 0.0))

    def test_a_small_front_stands_still_with_the_blocks_and_trains_again(self) -> None:
        for name, wrap in {
            "eager": lambda model: model,
            "compiled": compiled,
            "in place": lambda model: model.compile(backend="eager") or model,
        }.items():
            for set_to_none in (True, False):
                with self.subTest(name, set_to_none=set_to_none):
                    torch._dynamo.reset()
                    model = Model(nn.Linear(WIDTH, WIDTH))
                    answer, front, job = self.asked(wrap(model), vectors, 2, model.front, set_to_none=set_to_none)
                    self.assertEqual((answer, front, job.frozen_layers), (None, 0.0, 2))
                    job._freezer.freeze(0)
                    self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_stages_in_front_of_the_longest_one_are_refused_and_all_named_freeze(self) -> None:
        for set_to_none in (True, False):
            model = Stages()
            answer, _, job = self.asked(model, pictures, set_to_none=set_to_none)
            self.assertIn("blocks of the same kind in front of these", answer or "")
            self.assertEqual(job.frozen_layers, 0)
            model = Stages()
            blocks = [*model.layer1, *model.layer2, *model.layer3, *model.layer4]
            answer, stem, job = self.asked(model, pictures, 2, model.stem, blocks, set_to_none)
            self.assertEqual((answer, stem, job.frozen_layers), (None, 0.0, 2))

    def test_a_large_front_is_refused(self) -> None:
        front = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        for wrap in (lambda model: model, compiled):
            answer, _, job = self.asked(wrap(Model(front)), vectors)
            self.assertIn("more weights than a block has are in front of the blocks", answer or "")
            self.assertEqual(job.frozen_layers, 0)
        # As a vision tower that is only used.
        answer, _, job = self.asked(Model(front.requires_grad_(False)), vectors)
        self.assertEqual((answer, job.frozen_layers), (None, 1))

    def test_a_front_that_other_parts_use_as_well_is_refused(self) -> None:
        for name, wrap in {"eager": lambda model: model, "compiled": compiled}.items():
            with self.subTest(name):
                torch._dynamo.reset()
                answer, _, job = self.asked(wrap(Skip(nn.Linear(WIDTH, WIDTH))), vectors)
                self.assertIn("on a part of their gradients", answer or "")
                self.assertEqual(job.frozen_layers, 0)

    def test_what_all_blocks_take_keeps_its_whole_gradient(self) -> None:
        model, batch = Conditioned(), vectors()
        freezer = BlockFreezer(model)
        model(batch).pow(2).mean().backward()
        whole = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
        model.zero_grad()
        freezer.freeze(2)
        model(batch).pow(2).mean().backward()
        kept = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
        self.assertEqual([name.split(".")[0] for name in kept], ["blocks"] * 6 + ["head"] * 2 + ["condition"] * 2)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad, whole[name])

    def test_blocks_that_are_no_chain_are_refused_and_twins_are_not(self) -> None:
        for kind, part in (
            (Parallel, "block 1 is not called with what block 0 gave"),
            (Repeated, "several times in a pass"),
            (Twins, None),
        ):
            with self.subTest(kind.__name__):
                answer, _, job = self.asked(kind(), texts)
                self.assertIn(part or "None", str(answer))
                self.assertEqual(job.frozen_layers, 0 if part else 1)


class TestWantedInFront(Trains):
    """What is not the model's own may want a gradient by the blocks: it gets one, and the freeze is refused or taken back."""

    def run_steps(
        self,
        model: nn.Module,
        given: nn.Module,
        loss_of: Callable[[int], torch.Tensor],
        wanted: Callable[[int], list[nn.Parameter]] = lambda _: [],
        steps: int = 12,
    ) -> tuple[str | None, int | None, eadt.job]:
        """Returns the first answer, the blocks that are frozen after the last step, and the job.

        ``wanted``: weights that must get a gradient in a step.
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with eadt.job(given, optimizer, layers="auto", url=self.server.url, workload="n/a", agree_every=1) as job:
            for step in range(steps):
                if step == 3:
                    job.client._answer = (1, Directive("d-1", frozen_prefix_layers=2))
                optimizer.zero_grad()
                loss_of(step).backward()
                for weight in wanted(step):
                    self.assertIsNotNone(weight.grad, step)
                    weight.grad = None
                optimizer.step()
                job.step(samples=4)
                if job.checkpoint_due():
                    job.checkpointed()
        self.assertIsNone(job.client.last_error)
        return job.answers[0][1], job.frozen_layers, job

    def kinds(self) -> dict[str, Callable[[nn.Module], nn.Module]]:
        return {
            "eager": lambda model: model,
            "compiled": compiled,
            "blocks in place": lambda model: [block.compile(backend="eager") for block in model.blocks] and model,
        }

    def test_a_module_in_front_that_is_not_the_models_goes_on_training(self) -> None:
        for name, wrap in self.kinds().items():
            # A generator, behind passes of other inputs; and an encoder, with which all passes begin.
            for is_encoder in (False, True):
                with self.subTest(name, is_encoder=is_encoder):
                    torch._dynamo.reset()
                    other, model = nn.Linear(4, WIDTH), Model(nn.Linear(WIDTH, WIDTH))
                    given = wrap(model)

                    def loss_of(_: int, given: nn.Module = given, other: nn.Module = other, is_encoder: bool = is_encoder) -> torch.Tensor:
                        real = torch.zeros(()) if is_encoder else given(vectors()).pow(2).mean()
                        return real + given(other(torch.randn(4, 4))).pow(2).mean()

                    answer, frozen, _ = self.run_steps(model, given, loss_of, lambda _, other=other: list(other.parameters()))
                    self.assertIn("gradients are wanted" if name == "compiled" else "not of this model", answer or "")
                    self.assertEqual(frozen, 0)

    def test_weights_that_lead_to_the_blocks_in_some_steps_only_go_on_training(self) -> None:
        class Pictured(Model):
            """Takes pictures beside the text in some steps."""

            def __init__(self) -> None:
                super().__init__()
                self.pictures = nn.Linear(4, WIDTH)
                self.has_pictures = False

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                hidden = self.front(x)
                return self.head(self.run(hidden + self.pictures(torch.randn(4, 1, 4)) if self.has_pictures else hidden))

        # A directive is taken up after step 4, and step 5 is checked.
        for name, pictured in {"in the check": [2, 5, 8], "later": [7, 9]}.items():
            with self.subTest(name):
                model = Pictured()

                def loss_of(step: int, model: Pictured = model, pictured: list[int] = pictured) -> torch.Tensor:
                    model.has_pictures = step in pictured
                    return model(texts()).pow(2).mean()

                def wanted(_: int, model: Pictured = model) -> list[nn.Parameter]:
                    return list(model.pictures.parameters()) if model.has_pictures else []

                answer, frozen, job = self.run_steps(model, model, loss_of, wanted)
                if name == "in the check":
                    self.assertIn("did not in the step before the freeze, and would not train in such a step: pictures.", answer or "")
                    self.assertEqual(frozen, 0)
                else:
                    self.assertEqual((answer, frozen, len(job.answers)), (None, 0, 2))
                    self.assertIn("pictures.", job.answers[1][1] or "")

    def test_weights_in_front_that_other_steps_train_keep_these_gradients_whatever_step_is_checked(self) -> None:
        for other in range(3):
            with self.subTest(other):
                model = Model(nn.Linear(WIDTH, WIDTH))
                shallow = nn.Linear(WIDTH, WIDTH)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                with eadt.job(model, optimizer, layers="auto", url=self.server.url, workload="n/a", agree_every=1) as job:
                    for step in range(12):
                        if step == 3:
                            job.client._answer = (1, Directive("d-1", frozen_prefix_layers=2))
                        is_other, before = step % 3 == other, weights(model.front)
                        (shallow(model.front(vectors())) if is_other else model(vectors())).pow(2).mean().backward()
                        optimizer.step()
                        if is_other:
                            self.assertGreater(moved(model.front, before), 0.0, step)
                        optimizer.zero_grad(set_to_none=False)
                        job.step(samples=4)
                        if job.checkpoint_due():
                            job.checkpointed()
                self.assertIn("weights in front of the blocks", job.answers[-1][1] or "")
                self.assertEqual(job.frozen_layers, 0)

    def test_a_loop_that_takes_gradients_by_name_is_refused(self) -> None:
        model = Model()
        first, last = model.blocks[0].one.weight, model.blocks[3].one.weight
        outputs: list[torch.Tensor] = []
        model.blocks[0].register_forward_hook(lambda _module, _, output: outputs.append(output))
        ways: dict[str, Callable[[torch.Tensor], Any]] = {
            "of a weight": lambda loss: torch.autograd.grad(loss, first, retain_graph=True),
            "of all": lambda loss: torch.autograd.grad(loss, list(model.parameters()), create_graph=True),
            "of an embedding": lambda loss: torch.autograd.grad(loss, [model.front.weight], retain_graph=True, allow_unused=True),
            "of an activation": lambda loss: torch.autograd.grad(loss, outputs[-1], retain_graph=True),
            "of a weight and an activation": lambda loss: torch.autograd.grad(loss, [last, outputs[-1]], retain_graph=True),
            "put into .grad": lambda loss: loss.backward(inputs=list(model.parameters()), retain_graph=True),
            "in another pass of the step": lambda _: torch.autograd.grad(model(texts()).sum(), first),
            "behind the frozen blocks": lambda loss: torch.autograd.grad(loss, [last, model.head.weight], retain_graph=True),
        }
        for name, take in ways.items():
            with self.subTest(name):

                def loss_of(step: int, take: Callable[[torch.Tensor], Any] = take) -> torch.Tensor:
                    loss = model(texts()).pow(2).mean()
                    take(loss)
                    return loss

                answer, frozen, _ = self.run_steps(model, model, loss_of)
                is_behind = name == "behind the frozen blocks"
                self.assertEqual(frozen, 2 if is_behind else 0)
                self.assertIn("None" if is_behind else "takes gradients by name", str(answer))

    def test_what_a_backward_pass_computes_is_seen_from_the_thread_of_a_device_too(self) -> None:
        given = torch.ones(1, requires_grad=True)
        loss, found = given * 2, []

        def look(_: torch.Tensor) -> None:
            thread = threading.Thread(target=lambda: found.append(wanted_by_name()))
            thread.start()
            thread.join()

        loss.register_hook(look)
        torch.autograd.grad(loss, [given], retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward(inputs=[given])
        self.assertEqual([None if wanted is None else [tensor is given for tensor in wanted] for wanted in found], [[True], None, [True]])

    def test_a_loop_that_wants_gradients_of_activations_is_refused(self) -> None:
        def module_hook(module: nn.Module) -> None:
            module.register_full_backward_hook(lambda *_: None)

        ways: dict[str, Callable[[nn.Module], Any]] = {
            "retained": lambda module: module.register_forward_hook(lambda _module, _, output: output.retain_grad()),
            "hook": lambda module: module.register_forward_hook(lambda _module, _, output: output.register_hook(lambda _: None) and None),
            "hook of a module": module_hook,
            "of what it is given": lambda module: module.register_forward_pre_hook(
                lambda _module, given: given[0].register_hook(lambda _: None) and None
            ),
        }
        for name, watch in ways.items():
            for place in ("block", "part", "last block", *(("front",) if name == "retained" else ())):
                with self.subTest(name, place=place):
                    # What is in front is not what the first block is given.
                    model = Model(nn.Sequential(nn.Embedding(WIDTH, WIDTH), nn.Tanh()))
                    places = {"block": model.blocks[0], "part": model.blocks[0].one, "last block": model.blocks[3]}
                    watch(model.front[0] if place == "front" else places[place])
                    answer, frozen, _ = self.run_steps(model, model, lambda _, model=model: model(texts()).pow(2).mean())
                    is_fine = name == "hook of a module" or place == "last block"
                    self.assertEqual(frozen, 2 if is_fine else 0)
                    self.assertIn("None" if is_fine else "wants gradients of what these blocks compute", str(answer))

    def test_gradients_of_the_inputs_are_there_and_a_freeze_is_refused(self) -> None:
        def fgsm(given: nn.Module, _: int) -> torch.Tensor:
            x = vectors().requires_grad_()
            given(x).pow(2).mean().backward()
            assert x.grad is not None
            return given((x + x.grad.sign()).detach()).pow(2).mean()

        def forces(given: nn.Module, _: int) -> torch.Tensor:
            x = vectors().requires_grad_()
            [force] = torch.autograd.grad(given(x).pow(2).sum(), x, create_graph=True)
            return force.pow(2).mean()

        def in_some_steps(given: nn.Module, step: int) -> torch.Tensor:
            x = vectors()
            if step % 2 == 1:
                x.requires_grad_()
                x = x.detach() + torch.autograd.grad(given(x).pow(2).mean(), x)[0]
            return given(x).pow(2).mean()

        for name, wrap in self.kinds().items():
            for way in (fgsm, forces, in_some_steps):
                with self.subTest(name, way=way.__name__):
                    torch._dynamo.reset()
                    model = Model(nn.Linear(WIDTH, WIDTH))
                    given = wrap(model)
                    answer, frozen, _ = self.run_steps(model, given, lambda step, way=way, given=given: way(given, step))
                    self.assertIn("gradients", answer or "")
                    self.assertEqual(frozen, 0)

    def test_what_wants_gradients_after_the_check_gets_them_and_is_reported_at_the_next_look(self) -> None:
        for name, wrap in self.kinds().items():
            with self.subTest(name):
                torch._dynamo.reset()
                model = Model(nn.Linear(WIDTH, WIDTH))
                given, x = wrap(model), vectors()
                with eadt.job(given, None, layers="auto", url=self.server.url, workload="n/a") as job:
                    given(x).sum().backward()
                    job.step()
                    job._take_up(Directive("d-1", frozen_prefix_layers=2))
                    given(x).sum().backward()
                    job.step()
                    self.assertEqual(job.answers, [("d-1", None)])
                    given(x.requires_grad_()).sum().backward()
                    self.assertIsNotNone(x.grad)
                    for _ in range(2):
                        job._agree()
                    self.assertEqual((len(job.answers), job.frozen_layers), (2, 0))
                    self.assertIn("gradients", job.answers[1][1] or "")

    def test_a_leaf_that_peft_makes_of_an_embeddings_output_does_not_count(self) -> None:
        def make_inputs_require_grads(_module: nn.Module, _: object, output: torch.Tensor) -> None:
            output.requires_grad_(True)

        def by_block(model: Model) -> None:
            for index, block in enumerate(model.blocks):
                model.blocks[index] = compiled(block)

        for name, wrap in {
            "eager": lambda _: None,
            "blocks in place": lambda model: [block.compile(backend="eager") for block in model.blocks],
            "blocks": by_block,
            "head": lambda model: model.head.compile(backend="eager"),
        }.items():
            with self.subTest(name):
                torch._dynamo.reset()
                model = Model()
                model.front.requires_grad_(False).register_forward_hook(make_inputs_require_grads)
                wrap(model)
                answer, _, job = self.asked(model, texts, 2)
                self.assertEqual((answer, job.frozen_layers), (None, 2))

    def test_steps_of_a_compiled_model_that_are_not_compiled_keep_the_freeze(self) -> None:
        for kind in ("wrapped", "in place"):
            with self.subTest(kind):
                torch._dynamo.reset()
                model = Model()
                given = compiled(model) if kind == "wrapped" else model
                if kind == "in place":
                    model.compile(backend="eager")
                answer, frozen, job = self.run_steps(
                    model, given, lambda step, m=model, g=given: (m.forward if step > 8 else g)(texts()).mean()
                )
                self.assertEqual((answer, frozen, job._freezer.opened()), (None, 2, None))

    def test_a_model_that_is_compiled_after_the_job_was_made_may_have_hooks_inside_of_its_blocks(self) -> None:
        torch._dynamo.reset()
        model = Model()
        model.blocks[0].one.register_forward_hook(lambda *_: None)
        with eadt.job(model, None, layers="auto", url=self.server.url, workload="n/a") as job:
            model.compile(backend="eager", fullgraph=True)
            for _ in range(2):
                model(texts()).sum().backward()
                job.step()
            self.assertTrue(job._freezer._watch.was_compiled)

    def test_what_was_wanted_in_an_earlier_freeze_of_a_compiled_model_refuses_no_later_one(self) -> None:
        torch._dynamo.reset()
        model = Model(nn.Linear(WIDTH, WIDTH))
        given, x = compiled(model), vectors()
        with eadt.job(given, None, layers="auto", url=self.server.url, workload="n/a") as job:
            for decision in ("d-1", "d-2"):
                is_wanted = decision == "d-1"
                given(x.requires_grad_(is_wanted)).sum().backward()
                job.step()
                job._take_up(Directive(decision, frozen_prefix_layers=2))
                given(x).sum().backward()
                job.step()
                answered, answer = job.answers[-1]
                self.assertEqual((answered, answer is None, job.frozen_layers), (decision, not is_wanted, 0 if is_wanted else 2))

    def test_too_much_in_front_to_look_at_in_each_step_is_refused_before_the_freeze(self) -> None:
        class Columns(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(WIDTH))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.stack([x[..., :1] * self.scale for _ in range(MOST_NODES)]).mean(0)

        model = Model(Columns())
        freezer = BlockFreezer(model)
        model(vectors()).sum().backward()
        self.assertEqual(freezer.refusal(2), LONG)


class TestChecks(Trains):
    def test_reentrant_checkpointing_of_other_blocks_than_the_first_is_refused(self) -> None:
        answer, _, job = self.asked(Checkpointed(), texts)
        self.assertIn("reentrant", answer or "")
        self.assertEqual(job.frozen_layers, 0)

    def test_reentrant_checkpointing_in_front_has_a_reason_of_its_own(self) -> None:
        hidden = checkpoint(nn.Linear(WIDTH, WIDTH), vectors().requires_grad_(), use_reentrant=True)
        self.assertEqual(leaves_of(edges_of(hidden)), HIDDEN)

    def test_reentrant_checkpointing_of_compiled_blocks_is_refused(self) -> None:
        for name, wrap in {"in place": lambda block: block.compile(backend="eager") or block, "wrapped": compiled}.items():
            with self.subTest(name):
                torch._dynamo.reset()
                model = Checkpointed(parts=[wrap(Part()) for _ in range(4)])
                model.every_second = False
                answer, _, job = self.asked(model, texts)
                self.assertIn("reentrant", answer or "")
                self.assertEqual(job.frozen_layers, 0)

    def test_blocks_that_checkpointing_calls_again_in_the_backward_pass_do_not_train_again_there(self) -> None:
        class CalledAgain(Model):
            def run(self, x: torch.Tensor) -> torch.Tensor:
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=False)
                return x

        model = CalledAgain()
        freezer = BlockFreezer(model)
        model(texts()).sum().backward()
        freezer.freeze(2)
        loss = model(texts()).sum()
        freezer.leave()
        loss.backward()
        self.assertEqual([block.one.weight.requires_grad for block in model.blocks], [False, False, True, True])
        model.zero_grad()
        model(texts()).sum().backward()
        self.assertTrue(all(parameter.grad is not None for parameter in model.parameters()))

    def test_a_freeze_after_which_blocks_get_no_gradient_is_taken_back(self) -> None:
        class Cuts(Model):
            """Has no gradient behind a block without one, and shows nothing of it before."""

            def run(self, x: torch.Tensor) -> torch.Tensor:
                for block in self.blocks:
                    x = block(x) if x.requires_grad else block(x).detach()
                return x

        model = Cuts()
        answer, rest, job = self.asked(model, texts, 1, model.blocks[2])
        self.assertIn("it was taken back: block 1 got no gradient any more", answer or "")
        self.assertGreater(rest, 0.0)
        self.assertEqual((job.frozen_layers, job.answers), (0, [("d-1", answer)]))
        self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_hooks_of_a_check_go(self) -> None:
        model = Model()
        _, _, job = self.asked(model, texts, 2)
        self.assertEqual((job.frozen_layers, job._freezer._changes.check), (2, None))
        self.assertFalse(any(parameter._post_accumulate_grad_hooks for parameter in model.parameters()))
        self.assertFalse(any(block._forward_hooks for block in model.modules()))

    def test_a_look_that_fails_does_not_reach_training(self) -> None:
        class Odd(dict):  # type: ignore[type-arg]
            def values(self) -> object:  # type: ignore[override]
                raise RuntimeError("no values")

        class Wraps(Model):
            def forward(self, x: torch.Tensor) -> object:  # type: ignore[override]
                return Odd(out=super().forward(x))

        model = Wraps()
        freezer = BlockFreezer(model)
        model(texts())["out"].sum().backward()  # type: ignore[index]
        self.assertIsNone(freezer._watch.view)
        self.assertFalse(any(module._forward_hooks for module in model.modules()))

    def test_a_model_that_is_compiled_in_place_counts_recompilations(self) -> None:
        for wrap in (
            lambda model: model.compile(backend="eager"),
            lambda model: [block.compile(backend="eager") for block in model.blocks],
        ):
            torch._dynamo.reset()
            model = Model()
            wrap(model)
            _, _, job = self.asked(model, texts, 2)
            self.assertEqual(job._freezer.recompilations, 1)


class TestPrecisionOfCompiledModels(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.server = Recorder()
        self.addCleanup(self.server.close)

    def precisions(
        self, model: nn.Module, given: nn.Module, asked: list[str | None], own: bool = False, before: bool = False
    ) -> list[str | None]:
        """Returns what is reported after steps in each of these precisions, by ``job.autocast()`` or the loop's ``own`` context."""
        seen = []

        def run(context: object) -> None:
            with context:  # type: ignore[attr-defined]
                loss = model(texts()).float().pow(2).mean()
            loss.backward()

        if before:
            run(torch.autocast("cpu", enabled=False))
        with eadt.job(given, None, layers="auto", url=self.server.url, workload="n/a") as job:
            for precision in asked:
                if not own:
                    job._take_up(Directive("d-1", precision=precision))
                for _ in range(2):
                    run(torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16") if own else job.autocast())
                    job.step(samples=1)
                seen.append(job.effective_precision)
        return seen

    def test_it_is_the_one_that_passes_were_compiled_in(self) -> None:
        for before in (False, True):
            for kind in ("wrapped", "in place"):
                with self.subTest(kind, before=before):
                    torch._dynamo.reset()
                    plain = Model()
                    model = compiled(plain) if kind == "wrapped" else plain
                    if kind == "in place":
                        model.compile(backend="eager")
                    asked = [None, "bf16", "fp32", "bf16"]
                    self.assertEqual(self.precisions(model, model, asked, before=before), ["fp32", "bf16", "fp32", "bf16"])

    def test_autocast_of_the_loop_itself_is_seen(self) -> None:
        for before in (False, True):
            with self.subTest(before=before):
                torch._dynamo.reset()
                model = compiled(Model())
                self.assertEqual(self.precisions(model, model, ["bf16"], own=True, before=before), ["bf16"])

    def test_autocast_inside_of_the_model_is_seen(self) -> None:
        class Inside(Model):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                with torch.autocast("cpu", torch.bfloat16):
                    return super().forward(x)

        model = Inside()
        self.assertEqual(self.precisions(compiled(model), model, [None], own=True), ["bf16"])


if __name__ == "__main__":
    unittest.main()
