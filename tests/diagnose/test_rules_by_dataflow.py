"""What the rules say of several ops together is found by the flow of data: programs that have it, and look-alikes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from architectures import ARCHITECTURES
from torch import Tensor, nn

from kernelworks.diagnose.rules.patterns import ADAM, CACHE, FOLDABLE, GATE, LOGITS, NORM, ROTARY, patterns
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.cost.calls import work
from kernelworks.profile.recording import record

torch.manual_seed(0)
X, W = torch.randn(2, 6, 16), torch.randn(16)
IMAGE = torch.randn(2, 8, 6, 6)
COS, SIN = torch.randn(6, 16), torch.randn(6, 16)


def rms(x: Tensor, dim: int = -1) -> Tensor:
    wide = x.to(torch.float32)
    return W * (wide * torch.rsqrt(wide.pow(2).mean(dim, keepdim=True) + 1e-6)).to(x.dtype)


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * W + W


def centred_twice(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return W * ((x - mean) * torch.rsqrt(variance + 1e-5))


def by_variance(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)


def rotated(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * COS + torch.cat([-right, left], -1) * SIN


def rotated_slices(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return (x * COS) + (torch.cat((-x[..., half:], x[..., :half]), dim=-1) * SIN)


def crelu(x: Tensor) -> Tensor:
    return torch.relu(torch.cat([x, -x], -1)) * 0.5 + 1


def loss_of(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), torch.zeros(12, dtype=torch.long))


def scan(x: Tensor) -> Tensor:
    """A selective scan as Mamba's slow path has it: it negates, concatenates, multiplies and adds."""
    rate, state, outputs = -torch.exp(W), torch.zeros(2, 16), []
    for t in range(x.shape[1]):
        step = F.softplus(x[:, t])
        state = state * torch.exp(step * rate) + step * x[:, t]
        outputs.append(state.unsqueeze(1))
    return torch.cat(outputs, 1) + x


def adam(params: list[Tensor]) -> None:
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.AdamW(params, foreach=False)
    optimizer.step()
    optimizer.step()


class Cache(nn.Module):
    """Attention over what it has seen, a token a step."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: Tensor | None = None

    def forward(self, q: Tensor) -> Tensor:
        self.keys = q if self.keys is None else torch.cat([self.keys, q], 2)
        return F.scaled_dot_product_attention(q, self.keys, self.keys)


def decode() -> Tensor:
    cache, x = Cache(), torch.randn(1, 2, 1, 8)
    for _ in range(8):
        x = cache(x)
    return x


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8 + 2 * i, 2, 3, padding=1) for i in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class Dense1(nn.Module):
    """A DenseNet of linear layers: what grows is read by products, but they are no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16 + 2 * i, 2) for i in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], -1)
        return x


CONV, BATCH = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
SWISH, GATED = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)


def normed(training: bool) -> Tensor:
    return F.batch_norm(CONV(IMAGE), BATCH.running_mean, BATCH.running_var, BATCH.weight, BATCH.bias, training)


def beside() -> Tensor:
    """The convolution's output is needed by itself too."""
    y = CONV(IMAGE)
    return F.batch_norm(y, BATCH.running_mean, BATCH.running_var) + y


PROGRAMS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "rms norm": (lambda: rms(X), {NORM}),
    "rms norm by sqrt": (lambda: X / torch.sqrt((X * X).mean(-1, keepdim=True) + 1e-6), {NORM}),
    "rms norm in 16 bits": (lambda: rms(X.bfloat16()), {NORM}),
    "layer norm": (lambda: layer_norm(X), {NORM}),
    "layer norm, centred twice": (lambda: centred_twice(X), {NORM}),
    "layer norm by variance": (lambda: by_variance(X), {NORM}),
    "mean before the square": (lambda: X * torch.rsqrt(X.mean(-1, keepdim=True).pow(2) + 1) + X, set()),
    "norm over another dimension": (lambda: X * torch.rsqrt(X.pow(2).mean(1, keepdim=True) + 1e-6), set()),
    "another tensor scaled": (lambda: (X + 1) * torch.rsqrt(X.pow(2).mean(-1, keepdim=True) + 1e-6), set()),
    "a loss with a mean and a root": (lambda: torch.sqrt((X - W).pow(2).mean()) * X.mean(), set()),
    "rope": (lambda: rotated(X), {ROTARY}),
    "rope of slices": (lambda: rotated_slices(X), {ROTARY}),
    "crelu": (lambda: crelu(X), set()),
    "halves of two tensors": (lambda: X * COS + torch.cat([-(X + 1)[..., :8], X[..., :8]], -1) * SIN, set()),
    "turned, not added to itself": (lambda: W * COS + torch.cat([-X[..., 8:], X[..., :8]], -1) * SIN, set()),
    "mamba's scan": (lambda: scan(X), set()),
    "gate": (lambda: F.silu(SWISH(IMAGE)) * GATED(IMAGE), {GATE}),
    "gate of gelu": (lambda: F.gelu(SWISH(IMAGE), approximate="tanh") * GATED(IMAGE), {GATE}),
    "silu alone": (lambda: F.silu(SWISH(IMAGE)), set()),
    "silu scaled": (lambda: F.silu(SWISH(IMAGE)) * 2, set()),
    "silu times a parameter": (lambda: F.silu(SWISH(IMAGE)) * IMAGE[:1, :, :1, :1], set()),
    "silu added": (lambda: F.silu(SWISH(IMAGE)) + GATED(IMAGE), set()),
    "cache": (decode, {CACHE}),
    "densenet": (lambda: Dense()(IMAGE), set()),
    "densenet of products": (lambda: Dense1()(X), set()),
    "adam": (lambda: adam([torch.randn(4, 4, requires_grad=True)]), {ADAM}),
    "addcdiv of no optimizer": (lambda: X.clone().addcdiv_(X, X.abs().sqrt() + 1), set()),
    "batch norm after a convolution": (lambda: normed(False), {FOLDABLE}),
    "logits widened for their loss": (lambda: loss_of((X @ torch.randn(16, 9)).bfloat16().float()), {LOGITS}),
    "a tensor widened for its loss": (lambda: loss_of(X.bfloat16().float()), set()),
    "batch norm in training": (lambda: normed(True), set()),
    "batch norm of an input": (lambda: F.batch_norm(IMAGE, BATCH.running_mean, BATCH.running_var), set()),
    "convolution needed beside": (beside, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_patterns_of_a_program(name: str) -> None:
    run, expected = PROGRAMS[name]
    with torch.set_grad_enabled(expected == {ADAM}):
        calls = record(run, survey=Survey()).calls
    found = {pattern for names in patterns(calls).values() for pattern in names}
    assert found == expected


# What torch's own users run: what is in a forward, and what more in six steps of decoding.
MODELS: dict[str, tuple[set[str], set[str]]] = {
    "LlamaForCausalLM": ({NORM, ROTARY, GATE}, {CACHE}), "CohereForCausalLM": ({NORM, GATE}, {CACHE}),
    "PhiForCausalLM": ({ROTARY}, {CACHE}), "MambaForCausalLM": ({NORM, GATE}, set()),
    "GPT2LMHeadModel": (set(), {CACHE}), "T5ForConditionalGeneration": ({NORM}, {CACHE}),
    "SwinModel": (set(), set()), "ConvNextModel": (set(), set()), "Wav2Vec2Model": (set(), set()),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_are_modelled_and_seen_through(name: str) -> None:
    architecture = next(a for a in ARCHITECTURES if a.name == name)
    model, inputs = architecture.make().eval(), architecture.inputs(torch.Generator().manual_seed(0))
    forward, decoding = MODELS[name]
    runs = {"forward": lambda: model(**inputs)}
    if architecture.generates:
        runs["decoding"] = lambda: model.generate(**inputs, max_new_tokens=6, do_sample=False)
    for kind, run in runs.items():
        with torch.no_grad():
            calls = record(run, survey=Survey()).calls
        assert not {call.name for call in calls if work(call) is None}
        found = {pattern for names in patterns(calls).values() for pattern in names}
        assert found == (forward if kind == "forward" else forward | decoding), kind


def test_a_program_that_trains_keeps_its_batch_norms() -> None:
    calls = record(lambda: normed(False).sum().backward(), survey=Survey()).calls
    assert FOLDABLE not in {pattern for names in patterns(calls).values() for pattern in names}


@pytest.mark.parametrize("op", ["neg", "cat", "mul", "add"])
def test_all_ops_of_a_rotary_embedding_are_in_it(op: str) -> None:
    with torch.no_grad():
        calls = record(lambda: rotated(X), survey=Survey()).calls
    found = patterns(calls)
    assert all(ROTARY in found.get(id(c), ()) for c in calls if c.name == f"aten::{op}")
