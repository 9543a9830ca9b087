"""Blocks of models of transformers, made small and without a download: what is found, frozen and refused."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import nn

from eadt.freeze import BlockFreezer

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {**SIZES, "vocab_size": 64}
STEADY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
DECODED = {"d_model": 32, "encoder_layers": 4, "decoder_layers": 4, "dropout": 0.0, "vocab_size": 64, **HEADS}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0}


def of(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Returns a function that makes a model: its class without `For...` and the class of its configuration have one name."""
    kind = name.partition("For")[0].removesuffix("Model").removesuffix("LMHead")
    return lambda: getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**options))


def text(length: int = 10) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(5, 64, (2, length))}


def both() -> dict[str, torch.Tensor]:
    return {**text(), "decoder_input_ids": torch.randint(5, 64, (2, 6))}


def picture(size: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


def t5(**options: Any) -> Callable[[], nn.Module]:
    sizes = {"d_model": 32, "num_layers": 4, "num_heads": 2, "d_ff": 32, "d_kv": 16, "vocab_size": 64, "dropout_rate": 0.0}
    return of("T5ForConditionalGeneration", **sizes, decoder_start_token_id=0, pad_token_id=0, **options)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(part)


TOWERS = {
    "text_config": {**TEXT, "num_hidden_layers": 6, "eos_token_id": 63},
    "vision_config": {**SIZES, "image_size": 16, "patch_size": 8},
}
#: Models, what they take, and the list of the blocks that are found; then which gradients change: those of tied embeddings.
FREEZE: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, torch.Tensor]], str, list[str]]] = {
    "GPT-2": (
        of(
            "GPT2LMHeadModel",
            vocab_size=64,
            n_positions=16,
            n_embd=32,
            n_layer=4,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        text,
        "transformer.h",
        ["transformer.wte.weight"],
    ),
    "LLaMA": (of("LlamaForCausalLM", **TEXT, num_key_value_heads=2), text, "model.layers", []),
    "BERT": (of("BertForMaskedLM", **TEXT, **STEADY), text, "bert.encoder.layer", ["bert.embeddings.word_embeddings.weight"]),
    # Embeddings of relative positions go to all blocks, and keep their gradient.
    "MPNet": (of("MPNetForMaskedLM", **TEXT, **STEADY), text, "mpnet.encoder.layer", ["mpnet.embeddings.word_embeddings.weight"]),
    "ViT": (of("ViTForImageClassification", **SIZES, **STEADY, image_size=16, patch_size=4), picture(16), "layers", []),
    "T5": (t5(), both, "encoder.block", ["shared.weight"]),
    # Its encoder keeps its gradient through the frozen blocks.
    "T5 with a large decoder": (t5(num_decoder_layers=12), both, "decoder.block", ["shared.weight"]),
    "BART": (
        of("BartForConditionalGeneration", **DECODED, max_position_embeddings=32),
        both,
        "model.encoder.layers",
        ["model.shared.weight"],
    ),
    "Mamba": (
        of("MambaForCausalLM", hidden_size=32, num_hidden_layers=4, vocab_size=64, state_size=4),
        text,
        "backbone.layers",
        ["backbone.embeddings.weight"],
    ),
    "Mixtral": (of("MixtralForCausalLM", **TEXT, num_key_value_heads=2, num_local_experts=8), text, "model.layers", []),
    "Swin": (
        of(
            "SwinForImageClassification",
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=[2, 2, 6, 2],
            num_heads=[1, 2, 2, 4],
            window_size=2,
            drop_path_rate=0.0,
        ),
        picture(32),
        "swin.encoder.layers",
        [],
    ),
    "ResNet": (
        of("ResNetForImageClassification", embedding_size=16, hidden_sizes=[32, 64, 128, 256]),
        picture(64),
        "resnet.encoder.stages",
        [],
    ),
    "CLIP": (of("CLIPModel", **TOWERS), lambda: {**text(), **picture(16)()}, "text_model.encoder.layers", []),
    "Whisper": (
        of("WhisperForConditionalGeneration", **DECODED, **SPECIAL, num_mel_bins=8, max_source_positions=20, max_target_positions=16),
        lambda: {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": text(6)["input_ids"]},
        "model.encoder.layers",
        [],
    ),
}


class TestArchitectures(unittest.TestCase):
    def gradients(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        losses = [output.float().pow(2).mean() for output in tensors(model(**batch))]
        torch.stack(losses).sum().backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}

    def test_what_is_not_frozen_keeps_its_gradient_and_all_else_stands_still(self) -> None:
        for name, (make, take, place, tied) in FREEZE.items():
            with self.subTest(name):
                torch.manual_seed(0)
                model, batch = make().train(), take()
                freezer = BlockFreezer(model)
                whole = self.gradients(model, batch)
                trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
                names = {id(module): path for path, module in model.named_modules()}
                self.assertTrue(names[id(freezer.blocks[0])].endswith(f"{place}.0"), names[id(freezer.blocks[0])])
                freezer.end_look()
                self.assertFalse(any(module._forward_hooks or module._forward_pre_hooks for module in freezer.blocks))
                freezer.freeze(1)
                freezer.begin_check()
                kept = self.gradients(model, batch)
                self.assertEqual(freezer.check(True), (True, None))
                freezer.end_check()
                still = {id(parameter) for parameter in freezer.frozen_parameters()}
                frozen = {id(parameter) for parameter in freezer.blocks[0].parameters()}
                for path, parameter in model.named_parameters():
                    self.assertEqual(path in kept, path in whole and id(parameter) not in still, path)
                    self.assertEqual(parameter.requires_grad, id(parameter) in trained - frozen, path)
                changed = [path for path in kept if not torch.allclose(kept[path], whole[path], rtol=1e-3, atol=1e-5)]
                self.assertEqual(sorted(changed), sorted(tied))
                freezer.freeze(0)
                self.assertEqual({id(parameter) for parameter in model.parameters() if parameter.requires_grad}, trained)

    def test_a_large_front_is_refused_unless_it_stands_still_already(self) -> None:
        sizes = {**SIZES, "hidden_size": 128, "intermediate_size": 512, "vocab_size": 32, "num_conv_pos_embedding_groups": 2}
        model = of("Wav2Vec2ForCTC", **sizes, conv_dim=[32] * 7, mask_time_prob=0.0, layerdrop=0.0)().train()
        sound = {"input_values": torch.randn(2, 8000)}
        freezer = BlockFreezer(model)
        self.gradients(model, sound)
        self.assertEqual(freezer.blocks, list(model.wav2vec2.encoder.layers))
        self.assertIn("more weights than a block has are in front of the blocks", freezer.refusal(1) or "")
        for front in (model.wav2vec2.feature_extractor, model.wav2vec2.feature_projection, model.wav2vec2.encoder.pos_conv_embed):
            front.requires_grad_(False)
        freezer.look_again(whole=True)
        self.gradients(model, sound)
        self.assertIsNone(freezer.refusal(1))

    def test_one_layer_that_is_used_by_all_is_no_block(self) -> None:
        freezer = BlockFreezer(of("AlbertForMaskedLM", **TEXT, embedding_size=16)())
        self.assertIn("no blocks were found", freezer.refusal(1) or "")


if __name__ == "__main__":
    unittest.main()
