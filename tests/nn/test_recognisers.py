"""What looks like a normalisation, an activation, a gate or a rotary embedding is taken for one only where it is one.

Each look-alike below is swapped, and must then give what it gave: values, dtypes, gradients, errors and side effects,
over dimensions and dtypes, by position and by keyword, and after what it reads was changed.
"""

from __future__ import annotations

import math
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from outcomes import SEEN, SIZE, inputs, same, tried
from torch import nn

from kernelworks.nn.swap import swap


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, SIZE))
        self.eps, self.gain, self.calls = 1e-5, 1.0, 0

    def plain(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self.weight * self.plain(x)


def norm(body, **attributes):
    """A class whose forward is a function of (self, x)."""
    return type(body.__name__, (Norm,), {"forward": body, **attributes})


def first_dimension(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + self.eps))


def second_dimension(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps))


def all_dimensions(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean() + self.eps))


def two_dimensions(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean((0, -1), keepdim=True) + self.eps))


def clamped_before(self, x):
    return self.weight * self.plain(x.clamp(-1e4, 1e4))


def clamped_after(self, x):
    return (self.weight * self.plain(x)).clamp(-2.0, 2.0)


def clamped_mean(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp_min(self.eps)))


def without_nan(self, x):
    return torch.nan_to_num(self.weight * self.plain(x))


def detached(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps).detach())


def without_gradients(self, x):
    with torch.no_grad():
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
    return self.weight * (x * scale)


def detached_weight(self, x):
    return self.weight.detach() * self.plain(x)


def always_float32(self, x):
    return self.weight.float() * self.plain(x.float())


def always_bfloat16(self, x):
    return (self.weight * self.plain(x)).to(torch.bfloat16)


def with_gain(self, x):
    return self.gain * self.weight * self.plain(x)


def with_global(self, x):
    return SCALE * self.weight * self.plain(x)


def counting(self, x):
    self.calls += 1
    return self.weight * self.plain(x)


def noting(self, x):
    SEEN.append("called")
    return self.weight * self.plain(x)


def in_place(self, x):
    x *= torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
    return x * self.weight


def by_branch(self, x):
    return self.weight * self.plain(x) if x.dim() < 4 else x


def by_mode(self, x):
    return self.weight * self.plain(x) * (2 if self.training else 1)


def second_argument(self, x, scale=1.0):
    return self.weight * self.plain(x) * scale


def with_keywords(self, x, **more):
    return self.weight * self.plain(x) * more.get("scale", 1.0)


def named(self, hidden):
    return self.weight * self.plain(hidden)


def named_weight(self, weight):
    return self.weight * self.plain(weight)


def one_plus(self, x):
    return (1 + self.weight) * self.plain(x)


def eps_outside(self, x):
    return self.weight * (x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps))


def a_little_more(self, x):
    return self.weight * self.plain(x) + 1e-3


def squared_twice(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + self.eps))


def centred(self, x):
    return self.weight * self.plain(x - x.mean(-1, keepdim=True))


def with_own_constant(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3))


SCALE = 1.0
ARGUMENT = {"named": "hidden", "named_weight": "weight"}
NORMS = [
    norm(body)
    for body in (
        first_dimension, second_dimension, all_dimensions, two_dimensions, clamped_before, clamped_after, clamped_mean,
        without_nan, detached, without_gradients, detached_weight, always_float32, always_bfloat16, with_gain,
        with_global, counting, noting, in_place, by_branch, by_mode, second_argument, with_keywords, named,
        named_weight, one_plus, eps_outside, a_little_more, squared_twice, centred, with_own_constant,
    )
]  # fmt: skip
TAKEN = {"with_gain", "with_global", "named", "named_weight", "with_own_constant"}  # they are what they look like


@pytest.mark.parametrize("cls", NORMS, ids=lambda cls: cls.__name__)
def test_look_alikes_of_a_norm(cls) -> None:
    for x in inputs():
        module = cls().to(x.dtype)
        want = tried(module, x), tried(module, x, training=True)
        module.calls = 0
        with swap(module, verbose=False) as swapped:
            assert bool(swapped.replaced) == (cls.__name__ in TAKEN), swapped.replaced
            assert all("not verified to be one: " in left.reason for left in swapped.left)
            same(tried(module, x), want[0], x)
            same(tried(module, x, training=True), want[1], x)
            if cls.__name__ in ARGUMENT:
                same(tried(module, x, ARGUMENT[cls.__name__]), want[0], x)
                with pytest.raises(TypeError, match="unexpected keyword"):
                    module(other=x)
    if cls.__name__ == "counting":
        assert module.calls == 2


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan, 0.0])
@pytest.mark.parametrize("cls", [Norm, *NORMS], ids=lambda cls: cls.__name__)
def test_odd_values(cls, odd) -> None:
    module, x = cls(), torch.randn(2, 3, SIZE)
    x[0, 0, 1] = odd
    want = module(x.clone()).detach()
    with swap(module, verbose=False):
        got = module(x.clone()).detach()
    assert torch.equal(got.isfinite(), want.isfinite())
    torch.testing.assert_close(got, want, equal_nan=True)


CHANGES = {
    "eps": lambda m: setattr(m, "eps", 1.0),
    "eps is gone": lambda m: delattr(m, "eps"),
    "gain": lambda m: setattr(m, "gain", 3.0),
    "a method": lambda m: setattr(m, "plain", lambda x: x),
    "the weight": lambda m: setattr(m, "weight", nn.Parameter(torch.full((SIZE,), 2.0))),
    "a weight that broadcasts": lambda m: setattr(m, "weight", nn.Parameter(torch.full((1,), 2.0))),
    "a scalar weight": lambda m: setattr(m, "weight", nn.Parameter(torch.tensor(2.0))),
    "a matrix for a weight": lambda m: setattr(m, "weight", nn.Parameter(torch.rand(3, SIZE))),
    "a frozen weight": lambda m: m.weight.requires_grad_(False),
    "another dtype": lambda m: m.to(torch.bfloat16),
    "float64": lambda m: m.double(),
    "weights assigned": lambda m: m.load_state_dict({"weight": torch.full((SIZE,), 3.0)}, assign=True),
    "a parametrization": lambda m: nn.utils.parametrize.register_parametrization(m, "weight", nn.Tanh()),
    "pruning": lambda m: nn.utils.prune.l1_unstructured(m, "weight", amount=0.5),
    "a hook": lambda m: m.register_forward_hook(lambda m, args, out: out * 2),
    "a hook before": lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
    "a backward hook": lambda m: m.register_full_backward_hook(lambda m, inputs, outputs: (inputs[0] * 2,)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_norm_reads_may_change(change) -> None:
    module, x = norm(with_gain)(), torch.randn(2, 3, SIZE)
    with swap(module, verbose=False) as swapped:
        assert swapped.replaced
        module(x)
        change(module)
        got = tried(module, x)
    want = tried(module, x)
    same(got, want, x)


def test_a_class_and_a_global_may_change(monkeypatch) -> None:
    module, x = norm(with_global)(), torch.randn(3, SIZE)
    with swap(module, verbose=False) as swapped:
        assert swapped.replaced
        plain = module(x)
        monkeypatch.setitem(globals(), "SCALE", 4.0)
        torch.testing.assert_close(module(x), 4 * plain)
        monkeypatch.setattr(Norm, "plain", lambda self, x: x)
        torch.testing.assert_close(module(x), 4 * module.weight * x)


# ---------------------------------------------------------------- activations


ROOT = math.sqrt(2 / math.pi)
ACTIVATIONS = {  # the formula, and the ops that it is, or that the calls in it are; "" where it is neither
    "x / (1 + torch.exp(-1.702 * x))": "",
    "x * torch.sigmoid(1.702 * x)": "sigmoid",
    "0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3)))": "gelu",
    "0.5 * x * (1 + torch.tanh(ROOT * (x + 0.0447 * x**3)))": "tanh",
    "0.5 * x * (1 + torch.atan(ROOT * (x + 0.044715 * x**3)))": "",
    "x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))": "gelu",
    "x * 0.5 * (1.0 + torch.erf(x / 1.4))": "",
    "torch.clamp(F.gelu(x), -10, 10)": "gelu",
    "F.gelu(x.float())": "gelu",
    "F.gelu(x.detach()) + 0 * x": "gelu",
    "F.gelu(x, approximate='tanh').to(torch.float32)": "gelu",
    "x * torch.sigmoid(x)": "sigmoid",
    "x / (1 + torch.exp(-x))": "",
    "x * torch.tanh(F.softplus(x))": "softplus tanh",
    "x * torch.log1p(x.exp()).tanh()": "",
    "x * x.sigmoid()": "",
    "F.gelu(input=x)": "gelu",
    "F.softmax(x, -1, dtype=torch.float64)": "softmax",
    "F.softmax(x, dim=0) + x.softmax(-1)": "softmax",
    "F.layer_norm(x, x.shape[-1:], eps=1.0)": "layer_norm",
    "F.layer_norm(x, x.shape, eps=1.0)": "layer_norm",
    "F.rms_norm(x, [x.shape[-1]])": "rms_norm",
    "F.rms_norm(x, x.shape[-1:], x.detach().flatten()[:6] * 0 + 2)": "rms_norm",
    "F.linear(x, torch.ones(3, 6, dtype=x.dtype), torch.ones((), dtype=x.dtype))": "linear",
}


@pytest.mark.parametrize("formula", ACTIVATIONS)
def test_look_alikes_of_an_activation(formula) -> None:
    space = {"F": F, "torch": torch, "math": math, "ROOT": ROOT}
    exec(f"def forward(self, x): return {formula}", space)
    module, ops = type("Activation", (nn.Module,), {"forward": space["forward"]})(), tuple(ACTIVATIONS[formula].split())
    for x in inputs():
        want = tried(module, x)
        with swap(module, verbose=False) as swapped:
            assert [r.ops for r in swapped.replaced] == ([ops] if ops else [])
            same(tried(module, x), want, x)


# ---------------------------------------------------------------- rotary embeddings


def halves(x):
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def rotated(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + halves(q) * sin, k * cos + halves(k) * sin


def backwards(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos - halves(q) * sin, k * cos - halves(k) * sin


def cut(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim).detach(), sin.unsqueeze(unsqueeze_dim).detach()
    return q * cos + halves(q) * sin, k * cos + halves(k) * sin


def keys_first(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return k * cos + halves(k) * sin, q * cos + halves(q) * sin


apply_rotary_pos_emb = rotated


class Rotates(nn.Module):
    def forward(self, q, k, cos, sin, dim=1):
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=dim)


@pytest.mark.parametrize("function", [rotated, backwards, cut, keys_first], ids=lambda f: f.__name__)
def test_look_alikes_of_a_rotary_embedding(function, monkeypatch) -> None:
    named = type(function)(function.__code__, globals(), "apply_rotary_pos_emb", function.__defaults__)
    monkeypatch.setitem(globals(), "apply_rotary_pos_emb", named)
    module = Rotates()
    cases = [  # shapes of q, k and cos, and where heads are; not all of them are what Llama would give
        ((2, 4, 3, 8), (2, 2, 3, 8), (2, 3, 8), 1),
        ((2, 4, 3, 8), (2, 2, 3, 8), (1, 3, 8), 1),
        ((2, 3, 4, 8), (2, 3, 2, 8), (2, 3, 8), 2),
        ((2, 4, 3, 8), (2, 2, 3, 8), (2, 3, 4), 1),
        ((2, 4, 3, 8), (2, 2, 3, 8), (2, 3, 1), 1),
        ((2, 4, 3, 8), (2, 2, 3, 8), (2, 1, 8), 1),
        ((4, 3, 8), (2, 3, 8), (3, 8), 0),
    ]
    for q, k, table, dim in cases:
        given = [torch.randn(*s).requires_grad_() for s in (q, k, table, table)]
        want = _rotation(module, given, dim)
        with swap(module, verbose=False) as swapped:
            assert bool(swapped.replaced) == (function is rotated)
            got = _rotation(module, given, dim)
            if function is rotated:
                monkeypatch.setitem(globals(), "halves", lambda x: x)
                changed = _rotation(module, given, dim)
        if function is rotated:
            assert _equal(changed, _rotation(module, given, dim))
            monkeypatch.setitem(globals(), "halves", halves)
        assert _equal(got, want)


def _rotation(module, given, dim):
    try:
        out = module(*given, dim)
        gradients = torch.autograd.grad(sum(o.square().sum() for o in out), given, allow_unused=True)
    except Exception as error:
        return type(error), str(error)
    return [*out, *gradients]


def _equal(a, b):
    if isinstance(b, tuple):
        return a == b
    return all(
        (x is None) == (y is None) and (x is None or torch.allclose(x, y, atol=1e-4)) for x, y in zip(a, b, strict=True)
    )


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)
        self.eps = 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def test_a_number_that_becomes_a_tensor_has_its_gradient() -> None:
    model, x = Learned(), torch.randn(3, 8)
    with swap(model, verbose=False) as swapped:
        assert swapped.replaced
        del model.eps
        model.eps = nn.Parameter(torch.tensor(1e-6, dtype=torch.float64))  # it equals the number
        model(x).sum().backward()
    assert model.eps.grad is not None
