"""Architectures of transformers, tiny and random: how each is made and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

Inputs = Callable[[torch.Generator], dict[str, Any]]
VOCABULARY = 96


@dataclass(frozen=True)
class Architecture:
    """One architecture: the class of the model, the fields of its configuration, its inputs.

    ``labels`` makes those that a training step needs; ``generates`` says whether tokens can be generated greedily.
    """

    model: str
    config: str
    fields: dict[str, Any] = field(default_factory=dict)
    inputs: Inputs = lambda generator: tokens(generator)
    labels: Inputs | None = None
    generates: bool = False

    @property
    def name(self) -> str:
        return self.model

    def make(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        config = getattr(transformers, self.config)(**self.fields)
        model: nn.Module = getattr(transformers, self.model)(config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():  # gains that are one and biases that are zero hide mistakes
                noise = torch.randn(parameter.shape, generator=generator) * 0.1
                parameter.add_(noise) if parameter.dim() == 1 else parameter.mul_(2.0)
        return model


def tokens(generator: torch.Generator, rows: int = 2, length: int = 9) -> dict[str, Any]:
    """Token ids, the first row padded on the left."""
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def plain_tokens(generator: torch.Generator) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, VOCABULARY, (2, 9), generator=generator)}


def two_sides(generator: torch.Generator) -> dict[str, Any]:
    """Tokens for an encoder and for a decoder."""
    return tokens(generator) | {"decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5), generator=generator)}


def picture(generator: torch.Generator) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}


def picture_and_words(generator: torch.Generator) -> dict[str, Any]:
    return picture(generator) | {"input_ids": torch.randint(3, VOCABULARY - 1, (2, 9), generator=generator)}


def sound(generator: torch.Generator) -> dict[str, Any]:
    return {"input_values": torch.randn(2, 800, generator=generator)}


def spectrogram(generator: torch.Generator) -> dict[str, Any]:
    features = torch.randn(2, 16, 60, generator=generator)
    return {"input_features": features, "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 4), generator=generator)}


def next_tokens(generator: torch.Generator) -> dict[str, Any]:
    return {"labels": torch.randint(3, VOCABULARY, (2, 9), generator=generator)}


def decoded_tokens(generator: torch.Generator) -> dict[str, Any]:
    return {"labels": torch.randint(3, VOCABULARY, (2, 5), generator=generator)}


def classes(generator: torch.Generator) -> dict[str, Any]:
    return {"labels": torch.randint(0, 2, (2,), generator=generator)}


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY}
ENCODER = SIZES | {"intermediate_size": 48, "max_position_embeddings": 64}
DECODER = ENCODER | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = DECODER | {"head_dim": 8}
EXPERTS = HEADS | {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
VIEW = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "image_size": 32, "patch_size": 8}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY,
      "decoder_start_token_id": 0}  # fmt: skip
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": VOCABULARY,
        "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 2, "forced_eos_token_id": 2}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
SOUND = ENCODER | {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 5), "num_feat_extract_layers": 2,
                   "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}  # fmt: skip
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 16,
                "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}  # fmt: skip
CAUSAL = {"labels": next_tokens, "generates": True}


def causal(name: str, fields: dict[str, Any], **more: Any) -> Architecture:
    return Architecture(f"{name}ForCausalLM", f"{name}Config", fields, **(CAUSAL | more))


ARCHITECTURES = [
    causal("Llama", DECODER),
    causal("Qwen2", DECODER),
    causal("Qwen3", HEADS | {"tie_word_embeddings": True}),
    causal("Mistral", HEADS | {"sliding_window": 4}),
    causal("Gemma", HEADS),
    causal("Gemma2", HEADS | {"sliding_window": 4, "query_pre_attn_scalar": 8}),
    Architecture("Gemma3ForCausalLM", "Gemma3TextConfig", HEADS | {"sliding_window": 4, "query_pre_attn_scalar": 8},
                 **CAUSAL),
    causal("Phi", ENCODER | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
    causal("Phi3", DECODER),
    causal("Olmo", DECODER),
    causal("Olmo2", DECODER),
    causal("Granite", DECODER),
    causal("Cohere", DECODER),
    causal("Glm", HEADS),
    causal("StableLm", DECODER),
    causal("Starcoder2", DECODER),
    causal("Nemotron", DECODER),
    causal("SmolLM3", DECODER),
    causal("Mixtral", DECODER | {"num_local_experts": 4}),
    causal("Qwen3Moe", EXPERTS | {"num_experts": 4}),
    causal("Qwen2Moe", EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 24}),
    causal("Falcon", SIZES | {"ffn_hidden_size": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}),
    causal("GPTNeoX", ENCODER | {"bos_token_id": 1, "eos_token_id": 2}),
    causal("OPT", {"hidden_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "ffn_dim": 48, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
                   "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2}),
    causal("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "pad_token_id": 0}),
    causal("Mamba", {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "vocab_size": VOCABULARY,
                     "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, inputs=plain_tokens),
    Architecture("GPT2LMHeadModel", "GPT2Config", GPT2, **CAUSAL),
    Architecture("BertForSequenceClassification", "BertConfig", ENCODER, labels=classes),
    Architecture("RobertaForSequenceClassification", "RobertaConfig", ENCODER, labels=classes),
    Architecture("DistilBertForSequenceClassification", "DistilBertConfig",
                 {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": VOCABULARY}, labels=classes),
    Architecture("ElectraModel", "ElectraConfig", ENCODER | {"embedding_size": 16}),
    Architecture("AlbertModel", "AlbertConfig", ENCODER | {"embedding_size": 16}),
    Architecture("MPNetModel", "MPNetConfig", ENCODER),
    Architecture("DebertaV2Model", "DebertaV2Config", ENCODER | DISENTANGLED),
    Architecture("ModernBertModel", "ModernBertConfig", ENCODER | {"pad_token_id": 0}),
    Architecture("T5ForConditionalGeneration", "T5Config", T5, two_sides, decoded_tokens, True),
    Architecture("MT5ForConditionalGeneration", "MT5Config", T5 | {"feed_forward_proj": "gated-gelu"}, two_sides,
                 decoded_tokens, True),
    Architecture("BartForConditionalGeneration", "BartConfig", BART, two_sides, decoded_tokens, True),
    Architecture("PegasusForConditionalGeneration", "PegasusConfig", BART, two_sides, decoded_tokens, True),
    Architecture("ViTForImageClassification", "ViTConfig", VIEW, picture, classes),
    Architecture("Dinov2Model", "Dinov2Config", VIEW, picture),
    Architecture("SwinModel", "SwinConfig",
                 {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4],
                  "window_size": 4}, picture),
    Architecture("CLIPModel", "CLIPConfig", {"text_config": ENCODER | {"eos_token_id": 95}, "vision_config": VIEW},
                 picture_and_words),
    Architecture("SiglipModel", "SiglipConfig", {"text_config": ENCODER, "vision_config": VIEW}, picture_and_words),
    Architecture("WhisperForConditionalGeneration", "WhisperConfig",
                 BART | {"num_mel_bins": 16, "max_source_positions": 30, "max_target_positions": 32}, spectrogram),
    causal("GPTNeo", {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY,
                      "attention_types": [[["global", "local"], 1]], "window_size": 4, "max_position_embeddings": 64,
                      "bos_token_id": 1, "eos_token_id": 2}),
    causal("GPTJ", GPT2 | {"rotary_dim": 4}),
    causal("CodeGen", GPT2 | {"rotary_dim": 4, "n_ctx": 64}),
    causal("GPTBigCode", GPT2),
    causal("BioGpt", ENCODER),
    causal("Persimmon", ENCODER | {"pad_token_id": 0}),
    causal("DeepseekV3", HEADS | {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
                                  "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                                  "topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 24,
                                  "num_key_value_heads": 4}),
    causal("Mamba2", {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "vocab_size": VOCABULARY,
                      "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4, "pad_token_id": 0,
                      "bos_token_id": 1, "eos_token_id": 2}, inputs=plain_tokens),
    Architecture("FNetModel", "FNetConfig", ENCODER, plain_tokens),
    Architecture("XLNetModel", "XLNetConfig", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48,
                                               "vocab_size": VOCABULARY}),
    Architecture("ConvNextModel", "ConvNextConfig", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
                 picture),
    Architecture("SegformerModel", "SegformerConfig", {"hidden_sizes": [8, 16], "depths": [1, 1], "sr_ratios": [2, 1],
                 "num_encoder_blocks": 2, "num_attention_heads": [1, 2], "patch_sizes": [4, 2], "strides": [4, 2],
                 "mlp_ratios": [2, 2], "decoder_hidden_size": 16}, picture),
    Architecture("BeitModel", "BeitConfig", VIEW, picture),
    Architecture("PerceiverModel", "PerceiverConfig", {"num_latents": 4, "d_latents": 32, "d_model": 32,
                 "num_self_attends_per_block": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 4},
                 lambda generator: {"inputs": torch.randn(2, 9, 32, generator=generator)}),
    Architecture("Wav2Vec2Model", "Wav2Vec2Config", SOUND, sound),
    Architecture("HubertModel", "HubertConfig", SOUND, sound),
]  # fmt: skip


def floats(value: Any) -> list[Tensor]:
    """Every floating tensor in a model's output, in its order."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [leaf for item in value for leaf in floats(item)]
