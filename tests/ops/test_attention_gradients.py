"""Hopper's gradients of attention where there is no GPU: what they take, when they are chosen, what they launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelworks.build import cuda, kernels
from kernelworks.contract import Request, TensorSpec
from kernelworks.dispatch.op import OPS
from kernelworks.ops.attention.attention import sm90_backward, triton

OP = OPS["attention"]
Shape = tuple[int, int, int, int, int]  # batch, heads, key-value heads, positions, head_dim


def request(shape: Shape, device: str = "cuda", **changed: Any) -> Request:
    """A backward as a dispatcher sees it."""
    batch, heads, kv_heads, length, dim = shape
    dtype = changed.pop("dtype", torch.bfloat16)

    def spec(count: int) -> TensorSpec:
        return TensorSpec((batch, count, length, dim), dtype, (count * length * dim, length * dim, dim, 1), device)

    q, k, lse = spec(heads), spec(kv_heads), TensorSpec((batch, heads, length), torch.float32, (0, 0, 0), device)
    named = {"grad_output": q, "q": q, "k": k, "v": k, "output": q, "lse": lse}
    options = {"causal": None, "window": None, "scale": None, "mask": None, "needs": [True] * 3}
    return Request("attention", "backward", named | options | changed)


@pytest.mark.parametrize(
    ("shape", "changed", "reason"),
    [
        ((1, 4, 2, 300, 128), {}, None),
        ((1, 4, 2, 300, 64), {"causal": "bottom_right", "dtype": torch.float16, "scale": -0.5}, None),
        ((1, 4, 2, 300, 128), {"dtype": torch.float32}, "bfloat16 and float16"),
        ((1, 4, 2, 300, 96), {}, "head_dim of 64 or 128"),
        ((1, 4, 2, 300, 128), {"causal": "top_left", "window": 5}, None),
        ((1, 4, 2, 300, 128), {"mask": TensorSpec((1, 1, 1, 300), torch.bool, (300, 300, 300, 1), "cuda")}, "no mask"),
        ((0, 4, 2, 300, 128), {}, "sizes from 1"),
        ((1, 4, 2, 0, 64), {}, "sizes from 1"),
        ((1, 1, 1, 2**27, 64), {}, "2^27"),
        ((2**20, 512, 512, 64, 64), {}, "tiles of queries"),
    ],
)
def test_guard(shape: Shape, changed: dict[str, Any], reason: str | None) -> None:
    said = sm90_backward.guard(request(shape, **changed))
    assert said is None if reason is None else said is not None and reason in said


def test_shared_memory_is_what_the_source_lays_out(tmp_path: Path) -> None:
    source = tmp_path / "sizes.cu"
    checks = (f"static_assert(Shape<{dim}>::BYTES == {size});" for dim, size in sm90_backward.SHARED_BYTES.items())
    sizes = (
        f"static_assert(KEYS == {sm90_backward.KEYS} && STEP == {sm90_backward.STEP} && FAR == {sm90_backward.FAR});"
    )
    header = sm90_backward.SOURCE.with_name("sm90_gradients.cuh")
    source.write_text("\n".join((f'#include "{header}"', sizes, *checks, 'extern "C" __global__ void none() {}')))
    assert cuda.cubin(source)
    assert max(sm90_backward.SHARED_BYTES.values()) <= 227 * 1024


@pytest.mark.parametrize("dim", sm90_backward.SHARED_BYTES)
@pytest.mark.parametrize("dtype", sm90_backward.DTYPES)
@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_gradients_are_laid_out_as_their_inputs_are_shaped(dim: int, dtype: torch.dtype, causal: str | None) -> None:
    q = torch.empty(2, 70, 4, dim, dtype=dtype, device="meta").transpose(1, 2)
    k = torch.empty(2, 2, 130, dim, dtype=dtype, device="meta")
    lse = torch.empty(2, 4, 70, device="meta")
    made = sm90_backward.backward(q, q, k, k, q, lse, causal, None, None, None, [True] * 3)
    assert [t.shape for t in made[:3]] == [q.shape, k.shape, k.shape] and not made[3].numel()
    assert all(t.is_contiguous() and t.dtype == dtype for t in made)


def test_only_what_the_copy_engine_cannot_read_is_copied() -> None:
    plain = torch.ones(2, 3, 5, 64, dtype=torch.bfloat16)
    for kept in (plain, plain.transpose(1, 2), plain[:, :, ::2], plain[:1].expand(1, 3, 5, 64)):
        assert sm90_backward._boxed(kept) is kept
    odd = torch.ones(2 * 3 * 5 * 68, dtype=torch.bfloat16)
    for strange in (
        odd.view(2, 3, 5, 68)[..., :64],  # rows not of whole 16 bytes
        odd[: 2 * 3 * 5 * 64].view(2, 3, 64, 5).mT,  # columns apart
        odd[1 : 1 + 2 * 3 * 5 * 64].view(2, 3, 5, 64),  # begins between
        odd[:64].view(1, 1, 1, 64).expand(2, 3, 5, 64),  # a gradient of a sum: no strides at all
    ):
        copied = sm90_backward._boxed(strange)
        assert copied is not strange and copied.is_contiguous() and torch.equal(copied, strange)


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_algorithms_are_tritons(monkeypatch: pytest.MonkeyPatch, warn_only: bool) -> None:
    """dq is summed in no particular order: who asks torch for the same bits every time is given other kernels."""
    served: list[str] = []
    monkeypatch.setattr(triton, "backward", lambda *args: served.append("triton"))
    q, lse = torch.empty(1, 2, 64, 64, dtype=torch.bfloat16, device="meta"), torch.empty(1, 2, 64, device="meta")
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        sm90_backward.backward(q, q, q, q, q, lse, None, None, None, None, [True] * 3)
    finally:
        torch.use_deterministic_algorithms(False)
    assert served == ([] if warn_only else ["triton"])


@pytest.mark.parametrize("name", ["sm90_backward", "sm90_backward_wide", "sm90"])
def test_short_calls_are_replayed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of three launches with what lies between them the host's time is more than a short sequence's: what follows from
    shapes is worked out once."""
    taken: list[tuple[Any, ...]] = []

    def replayed(function: Any, args: tuple[Any, ...]) -> Any:
        taken.append((function.__module__.rsplit(".")[-1], function.__name__, len(args)))
        return lambda *given, out=None: len(given)

    monkeypatch.setattr(kernels.series, "make_replay", replayed)
    kernel, q = OP.kernel(name), torch.empty(1, 2, 64, 64, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(1, 2, 64, device="meta")
    options: tuple[Any, ...] = (None, None, None, None)
    forward, backward = (q, q, q, *options, True), (q, q, q, q, q, lse, *options, [True] * 4)
    pass_, args = ("forward", forward) if name == "sm90" else ("backward", backward)
    assert kernel.prepare is not None
    call = kernel.prepare(pass_, (*args, None, None))  # no softcap, no sinks
    assert taken == [(name, pass_, len(args) + 2)]
    assert call is not None and call(*args, None, None) == len(args) + 2
    assert name == "sm90" or (kernel.prepare("forward", (*forward, None, None)) is None and len(taken) == 1)
