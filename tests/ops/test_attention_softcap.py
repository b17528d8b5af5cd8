"""A softcap of attention: what a contract's cases cannot say of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import kernelworks as kw
from kernelworks.build import kernels
from kernelworks.dispatch.choose import eligible_ways
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.tuning_records import bucket_of, call_of
from kernelworks.ops.attention.attention import sm90_decode
from kernelworks.templates.attention import reference
from kernelworks.verify.compare import compare
from kernelworks.verify.reference import compute_reference

OP = OPS["attention"]
CAPPED = [case for case in OP.contract.cases if case.name.startswith("softcap")]
Q = torch.randn(1, 4, 6, 16, generator=torch.Generator().manual_seed(0))


class WithoutSlope(torch.autograd.Function):
    """The cap with the gradient of none."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, softcap: float) -> Tensor:
        return softcap * torch.tanh(scores / softcap)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_without_the_slope_of_the_cap_are_rejected(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which mutants cannot show: they have no gradients of their own."""

    rejected = 0
    for case in (c for c in CAPPED if c.gradients and "Lq=" not in c.name):
        expected = compute_reference(OP, case, dtype)
        args = {
            n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in expected.args.items()
        }
        found = {}
        for bend in (reference.apply_softcap, WithoutSlope.apply):
            with monkeypatch.context() as patch:
                patch.setattr(reference, "apply_softcap", bend)
                inputs = [args[n].clone().requires_grad_() for n in "qkv"]
                output = reference.reference(**{**args, **dict(zip("qkv", inputs, strict=True))})[0]
                flow = expected.grad_outputs[0].double()
                found[bend] = torch.autograd.grad(output, inputs, flow)
        for name, right, wrong in zip("qkv", *found.values(), strict=True):
            assert not compare(right, expected.gradients[name], expected.gradient_bounds[name])[1], case.name
            rejected += bool(compare(wrong, expected.gradients[name], expected.gradient_bounds[name])[1])
    assert rejected > 10


def test_tuning_records_tell_a_capped_call_from_a_plain_one() -> None:
    requests = [OP.request("forward", (Q, Q, Q, None, None, None, None, False, cap, None)) for cap in (None, 2.0, 50)]
    calls, buckets = [call_of(r) for r in requests], [bucket_of(OP.contract, r) for r in requests]
    assert calls[0] != calls[1] == calls[2] and buckets[0] != buckets[1] == buckets[2]
    assert "softcap" not in calls[0] + buckets[0], "tuning records of plain calls hold as they are"
    backward = OP.backward_of(OP.request("training", (Q, Q, Q, None, None, None, None, False, 2.0, None), ("q",)))
    assert call_of(backward) != call_of(dataclasses.replace(backward, args={**backward.args, "softcap": None}))


@pytest.mark.parametrize("kernel", ["sm90", "sm90_backward", "avx512", "avx2"])
def test_kernels_that_know_no_cap_decline_it(kernel: str) -> None:
    """And nothing else for it."""

    def declined(softcap: float | None) -> str:
        request = OP.request("forward", (*3 * [Q.bfloat16()], None, None, None, None, False, softcap, None))
        on = {n: dataclasses.replace(s, device="cuda") if hasattr(s, "device") else s for n, s in request.args.items()}
        return str(
            OP.kernel(kernel).guard(dataclasses.replace(request, args=on) if kernel.startswith("sm90") else request)
        )

    if "runs on" not in declined(None) and "has no" not in declined(None):
        assert declined(2.0) == "takes no softcap"
    assert "softcap" not in declined(None)


def test_what_no_kernel_takes_is_torchs() -> None:
    request = OP.request("training", (Q, Q, Q, None, None, None, None, False, 2.0, None), ("q", "k", "v"))
    assert not eligible_ways(OP, request)[0]
    output, lse = kw.attention(Q, Q, Q, causal="top_left", softcap=2.0, with_lse=True)
    want, lse_wanted = kw.attention(Q, Q, Q, causal="top_left", softcap=2.0, with_lse=True, kernel="scalar")
    torch.testing.assert_close(output, want)
    torch.testing.assert_close(lse, lse_wanted)
    with pytest.raises(RuntimeError, match="takes no softcap"):
        kw.attention(Q, Q, Q, softcap=2.0, kernel="avx2")


def test_a_cap_far_above_the_scores_is_none() -> None:
    for kernel in ("scalar", "torch"):
        plain, far = (kw.attention(Q, Q, Q, softcap=cap, kernel=kernel) for cap in (None, 1e6))
        torch.testing.assert_close(far, plain, rtol=1e-5, atol=1e-6)


def test_the_backward_knows_the_cap_of_its_forward() -> None:
    leaves = [Q.clone().requires_grad_() for _ in range(3)]
    found = {}
    for kernel in ("scalar", "torch", "reference"):
        output = kw.attention(*leaves, causal="top_left", softcap=0.5, kernel=kernel)
        found[kernel] = torch.autograd.grad(output, leaves, torch.linspace(-1, 1, Q.numel()).view(Q.shape))
    for kernel in ("scalar", "torch"):
        for ours, exact in zip(found[kernel], found["reference"], strict=True):
            torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["sm90", "sm90_backward", "sm90_decode", "avx2"])
def test_who_knows_sinks(kernel: str) -> None:
    for sinks in (None, Q[0, :, 0, 0].bfloat16()):
        q = Q.bfloat16() if kernel == "sm90_decode" else Q.bfloat16().repeat(1, 1, 5, 4)
        request = OP.request("forward", (q, q, q, None, None, None, None, False, None, sinks))
        on = {n: dataclasses.replace(s, device="cuda") if hasattr(s, "device") else s for n, s in request.args.items()}
        said = str(
            OP.kernel(kernel).guard(dataclasses.replace(request, args=on) if kernel.startswith("sm90") else request)
        )
        if sinks is None or kernel in ("sm90", "sm90_backward"):
            assert "sinks" not in said
        elif "runs on" not in said and "has no" not in said:
            assert said == "takes no sinks"


def test_hoppers_launch_for_few_is_given_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is as it was before there were softcap and sinks: neither reaches it."""
    given: list[tuple[Any, ...]] = []

    def launch(*args: Any, out: Any = None) -> str:
        given.append((*args, out))
        return "launched"

    monkeypatch.setattr(sm90_decode, "forward", launch)
    monkeypatch.setattr(sm90_decode, "prepare_forward", lambda *args: given.append(args) or launch)
    monkeypatch.setattr(kernels.cuda, "cubin", lambda source: None)
    kernel, plain = OP.kernel("sm90_decode"), (Q, Q, Q, "top_left", None, None, None, True)
    assert kernel.load("forward")(*plain, None, None, out="out") == "launched"
    assert kernel.prepare is not None
    prepared = kernel.prepare("forward", (*plain, None, None))
    assert prepared is not None and prepared(*plain, None, None) == "launched"
    assert [args[3:] for args in given] == [
        ("top_left", None, None, None, True, "out"), ("top_left", None, None, None, True),
        ("top_left", None, None, None, True, None),
    ]  # fmt: skip
