"""torch's counter of flop has as many for an op of ours as for the same call in torch's own functions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eligible import KERNELS, only
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import kernelworks as kw


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), requires_grad=True)


def sdpa(*args: Tensor, **named: Any) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):  # the counter knows nothing of what torch runs on a CPU by itself
        return F.scaled_dot_product_attention(*args, **named)


Pair = tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Any, ...]]
Q, KV, FEW = (2, 4, 6, 8), (2, 4, 7, 8), (2, 2, 7, 8)
CALLS: dict[str, Pair] = {
    "linear": (kw.linear, F.linear, (x(3, 4), x(5, 4), x(5))),
    "linear of a batch": (kw.linear, F.linear, (x(2, 3, 4), x(5, 4))),
    "attention": (kw.attention, sdpa, (x(*Q), x(*KV), x(*KV))),
    "causal attention": (
        lambda *a: kw.attention(*a, causal="top_left"), lambda *a: sdpa(*a, is_causal=True), (x(*Q), x(*KV), x(*KV))
    ),
    "attention of few heads": (
        kw.attention, lambda *a: sdpa(*a, enable_gqa=True), (x(*Q), x(*FEW), x(*FEW))
    ),
    "linear_cross_entropy": (
        kw.linear_cross_entropy, lambda h, w, t: F.cross_entropy(F.linear(h, w), t),
        (x(3, 4), x(5, 4), torch.tensor([0, 4, 2])),
    ),
    "gelu": (kw.gelu, F.gelu, (x(3, 4),)),
    "rms_norm": (lambda a, w: kw.rms_norm(a, w, eps=1e-6), lambda a, w: F.rms_norm(a, (4,), w), (x(3, 4), x(4))),
}  # fmt: skip


def counted(f: Callable[..., Tensor], args: tuple[Any, ...], wanted: str) -> int:
    args = tuple(a.detach().requires_grad_() if a.is_floating_point() else a for a in args)
    with FlopCounterMode(display=False) as counter:
        if wanted == "inference":
            with torch.inference_mode():
                f(*args)
        elif wanted == "forward":
            with torch.no_grad():
                f(*args)
        else:
            f(*args).sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("wanted", ["inference", "forward", "gradients"])
@pytest.mark.parametrize("name", CALLS)
def test_as_many_as_in_torchs_functions(name: str, wanted: str) -> None:
    ours, torchs, args = CALLS[name]
    with only(KERNELS[-1]) as taken:
        found = counted(ours, args, wanted)
    assert found == counted(torchs, args, wanted)
    assert (found > 0) == ("linear" in name or "attention" in name)
    assert taken or name == "linear_cross_entropy"  # which has kernels for GPUs alone


def test_in_a_compiled_program() -> None:
    _, _, (given, weight, _) = CALLS["linear"]
    with only(KERNELS[-1]):
        program = torch.compile(lambda a: kw.gelu(kw.linear(a, weight)), backend="aot_eager")
        program(given)  # compiled where nobody counts
        assert counted(program, (given,), "gradients") == counted(lambda a: F.linear(a, weight), (given,), "gradients")


def test_nothing_is_loaded_to_be_counted_by() -> None:
    run = "import kernelworks as kw, torch, sys; kw.gelu(torch.ones(3)); assert 'torch.utils.flop_counter' not in "
    subprocess.run([sys.executable, "-c", f"{run} sys.modules"], check=True)
