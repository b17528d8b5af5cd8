"""attention_fp8 beyond its contract: what Hopper's kernel is held to, and how it makes weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hopper import as_on_hopper, bits_of, weights_of
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch.op import OPS
from kernelworks.ops.attention.attention_fp8 import contract, sm90
from kernelworks.ops.attention.attention_fp8.cases import quantize_heads
from kernelworks.ops.attention.attention_fp8.contract import WEIGHT, per_head
from kernelworks.verify.parity import judge
from kernelworks.verify.reference import Reference, compute_reference, copy_tensors

OP = OPS["attention_fp8"]


@pytest.fixture(scope="module")
def taken() -> list[Reference]:
    """The cases that Hopper's kernel takes, with the bound that it is held to."""
    found = (
        compute_reference(OP, case, torch.bfloat16, 0, "cpu", OP.kernel("sm90").inner) for case in OP.contract.cases
    )
    return [e for e in found if sm90.guard(OP.request("forward", e.positional(OP))) is None]


def test_a_weight_is_off_by_no_more_than_the_bound_says() -> None:
    """From the smallest that is normal to the largest there is, but for a factor that all share."""
    x = torch.linspace(-5.99, 8, 200_001, dtype=torch.float64)
    share = weights_of(x) / 2.0**x
    middle = float(share.min() + share.max()) / 2
    assert 0.8 * WEIGHT < float((share / middle - 1).abs().max()) < WEIGHT
    assert bits_of(x).max() == 120  # far from NaN's 127
    small = torch.linspace(-40, -6, 20_001, dtype=torch.float64)  # relative to the largest, which has 2^7 or more
    assert float((weights_of(small) / middle - 2.0**small).abs().max()) < 1.1 * 2.0**-7
    assert bool((weights_of(small[small < -7]) < 2.0**-8).all()) and not weights_of(torch.tensor([-math.inf])).any()


def test_weights_made_so_keep_the_bound(taken: list[Reference]) -> None:
    assert len(taken) > 40
    for expected in taken:
        share, wrong = judge(as_on_hopper(*expected.positional(OP)), expected)
        assert not wrong and share < 0.5, wrong


def test_mutants_are_rejected_within_the_bound_of_8_bits_too(taken: list[Reference]) -> None:
    """Hopper's kernel is held to a wider bound than others: what is wrong must show beside it."""
    left = list(OP.mutants)
    for expected in taken:
        left = [m for m in left if not judge(m.run(*map(copy_tensors, expected.positional(OP))), expected)[1]]
    assert [m.name for m in left] == []


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def quantised_tensors() -> list[Tensor]:
    """Of 4 heads on 2, and a scale for each of the 2."""
    descales = [torch.tensor([[0.01, 0.02]]), torch.tensor([[0.03, 0.01]]), torch.tensor([[0.02, 0.05]])]
    tensors = (drawn(1, 4, 9, 32), drawn(1, 2, 11, 32), drawn(1, 2, 11, 32))
    return [*(quantize_heads(t, d, 2) for t, d in zip(tensors, descales, strict=True)), *descales]


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32, "float32"])
def test_it_is_attention_of_what_the_scales_make(out_dtype: Any) -> None:
    given = quantised_tensors()
    got = kw.attention_fp8(*given, causal="bottom_right", out_dtype=out_dtype)
    wide = [t.float() * per_head(d, t.shape[1], 2) for t, d in zip(given[:3], given[3:], strict=True)]
    want = kw.attention(*wide, causal="bottom_right")
    assert str(got.dtype).endswith(str(out_dtype).removeprefix("torch."))
    torch.testing.assert_close(got, want.to(got.dtype))
    out = torch.empty(1, 4, 9, 32, dtype=got.dtype)
    assert kw.attention_fp8(*given, causal="bottom_right", out_dtype=out_dtype, out=out) is out
    assert torch.equal(out, got)


def test_no_gradient_is_lost_in_silence() -> None:
    given = quantised_tensors()
    given[4].requires_grad_()
    with pytest.raises(ValueError, match="k_descale must not require grad"):
        kw.attention_fp8(*given)
    with torch.no_grad():
        assert not kw.attention_fp8(*given).requires_grad


def test_a_scale_without_dimensions_is_for_all() -> None:
    given = quantised_tensors()[:3]
    one = torch.tensor(0.02)
    each = [one.expand(1, 2).contiguous(), one.reshape(1, 1), one]
    assert torch.equal(kw.attention_fp8(*given, *each), kw.attention_fp8(*given, one, one, one))


def test_compiled_whole() -> None:
    def step(*given: Tensor) -> Tensor:
        return kw.attention_fp8(*given, causal="top_left").float() * 2

    given = quantised_tensors()
    torch.testing.assert_close(torch.compile(step, backend="aot_eager", fullgraph=True)(*given), step(*given))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"out_dtype": "float16"}, None),
        ({"out_dtype": "float32"}, "writes bfloat16 and float16"),
        ({"scale": -1.0}, "the scale must be positive"),
        ({"q": torch.empty(1, 4, 9, 64).to(torch.float8_e4m3fn)}, "takes a head_dim of 128"),
        ({"k": torch.empty(1, 2, 11, 136).to(torch.float8_e4m3fn)[..., :128]}, "strides must be multiples of 16"),
        ({"v": torch.empty(1, 1, 11, 128).to(torch.float8_e4m3fn).expand(1, 2, 11, 128)}, "none 0"),
        ({"k": torch.empty(1, 2, 0, 128).to(torch.float8_e4m3fn)}, "takes sizes from 1"),
    ],
)
def test_what_hopper_declines(change: dict[str, Any], reason: str | None) -> None:
    eight = (torch.empty(1, heads, n, 128).to(torch.float8_e4m3fn) for heads, n in ((4, 9), (2, 11), (2, 11)))
    given = dict(zip(("q", "k", "v"), eight, strict=True)) | {"causal": None, "scale": None, "out_dtype": "bfloat16"}
    one = dict.fromkeys(("q_descale", "k_descale", "v_descale"), torch.ones(()))
    asked = [(given | one | change)[name] for name in OP.passes["forward"].names]
    found = sm90.guard(OP.request("forward", asked))
    assert found is None if reason is None else reason in str(found)


def test_a_dimension_of_1_may_have_any_stride() -> None:
    x = torch.randn(1, 3, 1, 128).to(torch.float8_e4m3fn)
    odd = x.as_strided((1, 3, 1, 128), (7, 128, 33, 1))
    pairs = sm90._in_pairs(odd)
    assert pairs.shape == (1, 3, 1, 64) and torch.equal(pairs.contiguous().view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("inner", ["float32", "input"])
@pytest.mark.parametrize("name", ["scales of head, 6 heads on 2", "scales of one, 4 heads on 4", "layouts"])
def test_the_reference_in_shares_is_the_reference(name: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in OP.contract.cases if c.name == name)
    whole = compute_reference(OP, case, torch.bfloat16, 1, "cpu", inner)
    monkeypatch.setattr(contract, "MOST", 0)
    shares = compute_reference(OP, case, torch.bfloat16, 1, inner=inner)  # another key of the cache
    torch.testing.assert_close(shares.outputs, whole.outputs)
    torch.testing.assert_close(shares.bounds, whole.bounds)


def test_the_example_on_its_page_is_near_attention_of_what_was_rounded() -> None:
    page = (OP.op_package / "README.md").read_text(encoding="utf-8")
    made: dict[str, Any] = {}
    exec(page.split("```python")[1].split("```")[0], made)
    want = kw.attention(made["q"], made["k"], made["v"], causal="top_left")
    off = float((made["output"].float() - want).norm() / want.norm())
    assert 0.01 < off < 0.06, off
