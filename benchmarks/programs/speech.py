"""Speech: Whisper's encoder on half a minute of sound, of random weights."""

from __future__ import annotations

import functools

import torch
from place import DEVICE, sized
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

PAIRS = {"speech": "whisper"}


@functools.cache
def whisper() -> tuple[torch.nn.Module, torch.Tensor]:
    """Whisper tiny's encoder on a CPU, large-v3's on a GPU, and the mel spectrograms of 30 seconds."""
    torch.manual_seed(0)
    tiny = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536}
    large = {"d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120}
    config = WhisperConfig(num_mel_bins=sized(cpu=80, gpu=128), **sized(cpu=tiny, gpu=large))
    dtype = sized(cpu=torch.float32, gpu=torch.bfloat16)
    sound = torch.randn(sized(cpu=1, gpu=4), config.num_mel_bins, 3000, device=DEVICE, dtype=dtype)
    with torch.device(DEVICE):
        model = WhisperEncoder(config)
    return model.to(dtype).eval(), sound


@torch.no_grad()
def speech() -> torch.Tensor:
    """The hidden states that a decoder would read."""
    model, sound = whisper()
    return model(sound).last_hidden_state
