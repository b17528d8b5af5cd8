"""varlen_attn beyond its contract: the same as attention's, as FlexAttention's, and under compilers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from op_kernels import runnable_kernels
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch.op import OPS
from kernelworks.ops.attention.varlen_attn import baselines
from kernelworks.ops.attention.varlen_attn.contract import seen_pairs, sees
from kernelworks.verify.parity import judge
from kernelworks.verify.reference import compute_reference

OP = OPS["varlen_attn"]
NAMES = OP.passes["forward"].names
KERNELS = [name for op, name in runnable_kernels() if op is OP and op.kernel(name).source is not None]
CASES = {case.name: case for case in OP.contract.cases}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def ends(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


@pytest.mark.parametrize("kernel", KERNELS)
def test_sequences_of_one_length_are_a_batch(kernel: str) -> None:
    """Bit for bit, gradients too: the same kernels on the same numbers."""
    q, k, v = (drawn(3, n, h, 24).requires_grad_() for n, h in ((70, 4), (90, 2), (90, 2)))
    want, lse = kw.attention(
        *(t.transpose(1, 2) for t in (q, k, v)), causal="bottom_right", window=30, with_lse=True, kernel=kernel
    )
    cu = (ends(70, 70, 70), ends(90, 90, 90), 70, 90)
    packed = [t.flatten(0, 1) for t in (q, k, v)]
    got, of_got = kw.varlen_attn(*packed, *cu, window_size=(29, 0), enable_gqa=True, with_lse=True, kernel=kernel)
    assert torch.equal(got.view(3, 70, 4, 24), want.transpose(1, 2))
    assert torch.equal(of_got.view(4, 3, 70).transpose(0, 1), lse)
    flow = drawn(3, 70, 4, 24)
    wanted = torch.autograd.grad(want, (q, k, v), flow.transpose(1, 2))
    found = torch.autograd.grad(got, (q, k, v), flow.flatten(0, 1))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_another_longest_sequence_needs_no_other_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    args = (*(drawn(5, 2, 8) for _ in range(3)), ends(2, 3), ends(4, 1))
    OP.forget()
    want = kw.varlen_attn(*args, 3, 4, kernel="scalar")
    monkeypatch.setattr(OP, "make_plan", lambda *given: pytest.fail("planned again"))
    assert torch.equal(kw.varlen_attn(*args, 90, 5, kernel="scalar"), want)
    with pytest.raises(IndexError, match="max_q must be at least the longest sequence's length, 3; got 2"):
        kw.varlen_attn(*args, 2, 4, kernel="scalar")


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0), (0, 2), (4, -1)])
def test_pairs_are_counted_as_they_are_seen(window: tuple[int, int]) -> None:
    for queries, keys in ((0, 0), (0, 4), (4, 0), (1, 1), (7, 7), (5, 11), (11, 5)):
        assert seen_pairs(queries, keys, window) == int(sees(queries, keys, window).sum()), (queries, keys)


@pytest.mark.parametrize("name", ["causal 0 and 1, lse of -inf", "window 3, 2, lse of -inf", "8 heads on 1", "scale"])
def test_the_baselines_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention with a mask of documents, and what runs under transforms: other formulas, the same numbers."""
    expected = compute_reference(OP, CASES[name], torch.float32)
    args = {**expected.args, "with_lse": False}
    monkeypatch.setattr(baselines, "_compiled", lambda function: function)
    flex = baselines.by_flex(args)
    assert flex is not None
    for found in (flex(args["query"], args["key"], args["value"]), OP.composite(**args), OP.native(*args.values())):
        assert torch.allclose(found.double(), expected.outputs[0], atol=2e-6), name


def test_compiled_whole() -> None:
    def step(query: Tensor, key: Tensor, value: Tensor, cu: Tensor, most: int) -> Any:
        output, lse = kw.varlen_attn(query * 1, key, value, cu, cu, most, most, window_size=(-1, 0), with_lse=True)
        return output.square().sum() + lse.detach().sum()

    args = [drawn(9, 2, 8).requires_grad_() for _ in range(3)]
    cu = ends(4, 5)
    want = step(*args, cu, 5)
    got = torch.compile(step, backend="aot_eager", fullgraph=True)(*args, cu, 5)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got, args), torch.autograd.grad(want, args), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kernel", KERNELS)
def test_threads_share_sequences(kernel: str) -> None:
    """Whichever thread takes a tile, and however few tiles there are for each."""
    expected = compute_reference(OP, CASES["causal tiles, lse of -inf"], torch.float32)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            assert not judge(OP(*expected.positional(OP), kernel=kernel), expected)[1]
    finally:
        torch.set_num_threads(before)
