"""A small Llama-shaped model that decodes on a GPU, recorded by torch.profiler for `kernelworks descend --trace`.

    python examples/trace_decode.py FOLDER
    kernelworks descend --trace FOLDER/eager.json.gz
    kernelworks descend --trace FOLDER/compiled.json.gz --cache FOLDER/cache

Three traces of four tokens each: ``eager`` (torch's own functions), ``ours`` (norms and gates by kernelworks' Triton
kernels) and ``compiled`` (torch.compile, whose kernels inductor writes in Triton). ``cache`` holds what Triton compiled
meanwhile: source, IR, PTX and cubin of each kernel. Random weights cost the same time as trained ones. Without a GPU
the same runs on the CPU, and the traces hold no kernels.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before torch and Triton are imported: their caches lie beside the traces.
os.environ["TRITON_CACHE_DIR"] = os.path.abspath(os.path.join(*sys.argv[1:2], "cache", "triton"))
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(os.path.join(*sys.argv[1:2], "cache", "inductor"))
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import kernelworks as kw

FOLDER = Path(*sys.argv[1:2]).resolve()
HIDDEN, INNER, LAYERS, VOCABULARY = 1024, 2816, 4, 32000
HEADS, KV_HEADS, HEAD_DIM = 16, 4, 64
PREFIX, ROOM, TOKENS, EPS = 512, 576, 4, 1e-5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))
        self.kernel = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel:
            return kw.rms_norm(x, (HIDDEN,), self.weight, eps=EPS, kernel=self.kernel)
        return F.rms_norm(x, (HIDDEN,), self.weight, EPS)


class Attention(nn.Module):
    """Grouped-query attention of one new token over a cache of fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.register_buffer("keys", torch.randn(1, KV_HEADS, ROOM, HEAD_DIM))
        self.register_buffer("values", torch.randn(1, KV_HEADS, ROOM, HEAD_DIM))

    def forward(self, x: Tensor, place: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
        heads = self.qkv(x).view(1, 1, HEADS + 2 * KV_HEADS, HEAD_DIM).transpose(1, 2)
        query, key, value = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
        self.keys.index_copy_(2, place, _turned(key, turn))
        self.values.index_copy_(2, place, value)
        found = F.scaled_dot_product_attention(_turned(query, turn), self.keys, self.values, mask, enable_gqa=True)
        return self.out(found.transpose(1, 2).reshape(1, 1, HEADS * HEAD_DIM))


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Rotary position: pairs of the two halves, turned by this place's angles."""
    low, high = x.chunk(2, -1)
    cos, sin = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        self.kernel = ""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate(x), self.up(x)
        return self.down(kw.silu_mul(gate, up, kernel=self.kernel) if self.kernel else F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.norm_after, self.gates = RMSNorm(), Attention(), RMSNorm(), Gates()

    def forward(self, x: Tensor, place: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x), place, turn, mask)
        return x + self.gates(self.norm_after(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.register_buffer("rates", 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
        self.register_buffer("places", torch.arange(ROOM))

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        turn, mask = place.float() * self.rates.float(), (self.places <= place).view(1, 1, 1, ROOM)
        x = self.embedding(token).view(1, 1, HIDDEN)
        for layer in self.layers:
            x = layer(x, place, turn, mask)
        return self.head(self.norm(x)).argmax(-1).view(1)


def by_our_kernels(model: Decoder, kernel: str) -> None:
    """Has every norm and every gate computed by this kernel of kernelworks; by torch's functions for ""."""
    for module in model.modules():
        if isinstance(module, (RMSNorm, Gates)):
            module.kernel = kernel


@torch.inference_mode()
def decode(step, tokens: int = TOKENS) -> list[int]:
    """Greedy decoding after the prefix."""
    token, place = torch.zeros(1, dtype=torch.int64, device=DEVICE), torch.full((1,), PREFIX, device=DEVICE)
    found = []
    for _ in range(tokens):
        token = step(token, place).clone()
        place = place + 1
        found.append(token)
    return torch.cat(found).tolist()


def record(name: str, step) -> None:
    """Warm, then under the profiler with shapes and Python's stack."""
    for _ in range(3):
        decode(step)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
    with profile(activities=kinds, record_shapes=True, with_stack=True) as found:
        tokens = decode(step)
    path = FOLDER / f"{name}.json.gz"
    found.export_chrome_trace(str(path))
    print(f"{name}: tokens {tokens}, {path} {path.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = Decoder().to(DEVICE, torch.bfloat16).eval().requires_grad_(False)
    model.places = torch.arange(ROOM, device=DEVICE)
    record("eager", model)
    by_our_kernels(model, "triton" if DEVICE == "cuda" else "reference")
    record("ours", model)
    by_our_kernels(model, "")
    record("compiled", torch.compile(model, fullgraph=True))


if __name__ == "__main__":
    main()
