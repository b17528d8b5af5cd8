"""Our ops, and a swapped model, in every odd way that torch can be called: what torch gives, or a clear refusal."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from contexts import CONTEXTS, Context, leaves
from eligible import KERNELS, only
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernelworks as kw

TOLERANCE = 1e-3  # of float32 results near one; a wrong sign, a missing term or memory misread is beyond it


def given(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def angles(q: Tensor) -> tuple[Tensor, Tensor]:
    angle = torch.arange(q.shape[2], dtype=torch.float32)[:, None] / torch.arange(1, 9, dtype=torch.float32)
    angle = torch.cat((angle, angle), -1).expand(q.shape[0], -1, -1)
    return angle.cos(), angle.sin()


def turned(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = (t[:, None] for t in angles(q))
    half_q, half_k = (torch.cat((-x[..., 8:], x[..., :8]), -1) for x in (q, k))
    return q * cos + half_q * sin, k * cos + half_k * sin


TORCHS = threading.RLock()  # what sdpa_kernel sets is the process's: two threads would put back each other's


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Torch's plain attention; its quick one reads zero tensors wrongly and has no forward derivative."""
    with TORCHS, sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# name -> ours, torch's, inputs
OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Tensor]]] = {
    "gelu": (kw.gelu, F.gelu, given((4, 6, 16))),
    "gelu_tanh": (lambda x: kw.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), given((3, 5))),
    "silu_mul": (kw.silu_mul, lambda g, u: F.silu(g) * u, given((4, 6, 16), (4, 6, 16))),
    "softmax": (kw.softmax, lambda x: F.softmax(x, -1), given((4, 6, 16))),
    "softmax_0": (lambda x: kw.softmax(x, dim=0), lambda x: F.softmax(x, 0), given((4, 6, 16))),
    "rms_norm": (
        lambda x, w: kw.rms_norm(x, w, eps=1e-6), lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
        given((4, 6, 16), (16,)),
    ),
    "layer_norm": (
        lambda x, w, b: kw.layer_norm(x, w, b, eps=1e-5), lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5),
        given((4, 6, 16), (16,), (16,)),
    ),
    "linear": (kw.linear, F.linear, given((4, 6, 16), (8, 16), (8,))),
    "cross_entropy": (
        lambda x: kw.cross_entropy(x, torch.arange(x.shape[0])), lambda x: F.cross_entropy(x, torch.arange(x.shape[0])),
        given((6, 16)),
    ),
    "attention": (
        lambda q, k, v: kw.attention(q, k, v, causal="top_left"),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        given((2, 4, 6, 16), (2, 4, 6, 16), (2, 4, 6, 16)),
    ),
    "rope": (lambda q, k: kw.rope(q, k, *angles(q)), turned, given((2, 4, 6, 16), (2, 2, 6, 16))),
    "embedding": (
        lambda w: kw.embedding(torch.arange(5, device=w.device) % 4, w),
        lambda w: F.embedding(torch.arange(5, device=w.device) % 4, w), given((8, 16)),
    ),
}  # fmt: skip


class Net(nn.Module):
    """One of everything that a swap replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.qkv = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 48)
        self.first, self.second, self.soft = nn.LayerNorm(32), nn.RMSNorm(32), nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.first(F.gelu(self.up(x))))
        x = self.down(F.silu(h) * h)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).movedim(-3, 0).transpose(-3, -2)
        return self.soft(F.scaled_dot_product_attention(q, k, v, is_causal=True)) + 1


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings(), only(KERNELS[-1]):
        warnings.simplefilter("ignore")
        yield


def outcome(function: Callable[..., Any], way: Context, args: list[Tensor]) -> tuple[str, list[Any]]:
    try:
        values = leaves(way(function, [a.clone() for a in args]))
        return "", [v.detach().clone() if isinstance(v, Tensor) else v for v in values]
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:300], []


def differ(want: list[Any], got: list[Any]) -> str:
    if len(want) != len(got):
        return f"{len(got)} values, torch gives {len(want)}"
    for a, b in zip(want, got, strict=True):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            if not (_nothing(a) and _nothing(b)) and (a is None or b is None or a != b):
                return f"{b}, torch gives {a}"
        elif a.shape != b.shape or a.dtype != b.dtype:
            return f"{b.dtype} {list(b.shape)}, torch gives {a.dtype} {list(a.shape)}"
        else:
            x, y = (t.as_subclass(torch.Tensor).resolve_neg().double() for t in (a, b))
            if not torch.allclose(x, y, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                return f"off by {float((x - y).abs().nan_to_num(torch.inf).max()):.2g}"
    return ""


def _nothing(value: Any) -> bool:
    """No gradient, whether it is said by None or by zeros."""
    return value is None or (isinstance(value, Tensor) and not value.any())


@pytest.mark.parametrize("way", CONTEXTS)
def test_ops(way: str) -> None:
    """What torch gives. Where torch refuses, ours may too, or not."""
    wrong = []
    for name, (ours, theirs, args) in OPS.items():
        error, got = outcome(ours, CONTEXTS[way], args)
        found = []
        for function in (theirs, *([attended] if name == "attention" else [])):
            refused, want = outcome(function, CONTEXTS[way], args)
            found.append("" if refused else error or differ(want, got))
        wrong += [f"{name}: {found[0]}"] if all(found) else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("way", CONTEXTS)
def test_a_swapped_model(way: str) -> None:
    """What the model gave, or the error that it raised; what torch has not got at all, a swapped model may have."""
    torch.manual_seed(0)
    model, args = Net(), given((2, 5, 16))
    other = copy.deepcopy(model)
    refused, want = outcome(model, CONTEXTS[way], args)
    with kw.swap(other, verbose=False):
        error, got = outcome(other, CONTEXTS[way], args)
    if refused and "not implemented" not in refused.replace("not been", "not"):
        assert error.partition(":")[0] == refused.partition(":")[0], f"{error or 'no error'}; torch: {refused}"
    elif not refused:
        assert not error and not differ(want, got), error or differ(want, got)
