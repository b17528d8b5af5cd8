"""An op may be called as torch's function is: every argument of torch's, by position and by name.

Made from torch's own signatures: an op that says its signature gets these tests by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_calls import NAMES, OTHER, UNSAID, WHOLE, example, in_precision, torchs

import kernelworks as kw
from kernelworks.diagnose.explain import what_it_asks
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.signature import TorchSignature


def in_order(torch_signature: TorchSignature, given: dict[str, Any]) -> list[Any]:
    """All of torch's arguments by position, up to the last that is given and may be."""
    last = max(i for i, (name, _, placed) in enumerate(torchs(torch_signature)) if placed and name in given)
    return [given.get(name, default) for name, default, _ in torchs(torch_signature)[: last + 1]]


def same(a: Any, b: Any, dtype: torch.dtype = torch.float32) -> None:
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_whole(name: str) -> None:
    """Stands before what calls the ops: the first call of one may be in a program that is compiled."""
    torch_signature, function = OPS[name].torch_signature, getattr(kw, name)
    given = example(torch_signature)
    torch.compiler.reset()  # the calls of all ops are one line to its cache
    compiled = torch.compile(lambda: function(**given), fullgraph=True, backend="eager", dynamic=False)
    same(compiled(), torch_signature.function(**given))  # type: ignore[misc]


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_is_torchs(name: str) -> None:
    torch_signature = OPS[name].torch_signature
    ours = [
        (n, torch_signature.defaults.get(n, inspect._empty), i < len(torch_signature.positional))
        for i, n in enumerate(torch_signature.names)
    ]
    assert ours == torchs(torch_signature)
    assert {n for n, _, _ in torchs(torch_signature)} - UNSAID <= OTHER.keys() | WHOLE.keys() | example(
        torch_signature
    ).keys()


@pytest.mark.parametrize("name", NAMES)
def test_by_position_and_by_name(name: str) -> None:
    torch_signature, function = OPS[name].torch_signature, getattr(kw, name)
    given = example(torch_signature)
    want = torch_signature.function(**given)  # type: ignore[misc]
    placed = in_order(torch_signature, given)
    for count in range(len(placed) + 1):
        names = [n for n, _, _ in torchs(torch_signature)[:count]]
        rest = {n: v for n, v in given.items() if n not in names}
        same(function(*placed[:count], **rest), want)
    for own, theirs in torch_signature.theirs.items():  # our names for them, too
        if theirs in given and own not in torch_signature.names:
            same(function(**{own if n == theirs else n: v for n, v in given.items()}), want)
    op, _, _ = what_it_asks(lambda: function(**given))
    assert op is OPS[name]  # and it is ours that is asked


@pytest.mark.parametrize("name", NAMES)
def test_every_other_value_is_torchs_to_take(name: str) -> None:
    torch_signature, function = OPS[name].torch_signature, getattr(kw, name)
    given = example(torch_signature)
    given.pop("attn_mask", None)
    for other in OTHER.keys() & set(torch_signature.names):
        if other in given and isinstance(given[other], Tensor) and other not in torch_signature.defaults:
            continue
        said = given | {other: OTHER[other](given)}
        torch.manual_seed(3)
        want: Any = outcome(lambda: torch_signature.function(**said))  # noqa: B023  # type: ignore[misc]
        torch.manual_seed(3)
        got: Any = outcome(lambda: function(**said))  # noqa: B023
        assert type(got) is type(want), (other, got)
        same(got, want) if isinstance(want, Tensor) else None
        if isinstance(want, Tensor):
            out = torch.empty(want.shape, dtype=want.dtype)
            torch.manual_seed(3)
            assert function(**said, out=out) is out
            same(out, want)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_dtype_that_the_contract_leaves_out_is_torchs(name: str, dtype: torch.dtype) -> None:
    torch_signature = OPS[name].torch_signature
    given = {
        n: v.to(in_precision(v.dtype, dtype)) if isinstance(v, Tensor) else v
        for n, v in example(torch_signature).items()
    }
    want: Any = outcome(lambda: torch_signature.function(**given))  # type: ignore[misc]
    got: Any = outcome(lambda: getattr(kw, name)(**given))
    assert type(got) is type(want)
    if isinstance(want, Exception):  # what torch does not take
        assert str(got) == str(want)
        return
    assert dtypes(got) == dtypes(want)
    wide = {n: v.double() if isinstance(v, Tensor) and v.dtype == dtype else v for n, v in given.items()}
    true: Any = outcome(lambda: torch_signature.function(**wide))  # type: ignore[misc]
    if dtype in OPS[name].contract.dtypes and not isinstance(true, Exception):
        # Ours may serve, and be nearer to what is true than torch is.
        for ours, torchs, exact in zip(*(_tensors(r) for r in (got, want, true)), strict=True):
            off = (torchs.double() - exact.double()).abs()
            assert bool(((ours.double() - exact.double()).abs() <= 2e-2 + 2e-2 * exact.double().abs() + off).all())
    else:
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", torch.bfloat16):
        assert dtypes(getattr(kw, name)(**given)) == dtypes(torch_signature.function(**given))  # type: ignore[misc]


def _tensors(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def dtypes(result: Any) -> list[torch.dtype]:
    return [t.dtype for t in _tensors(result)]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_is_named(name: str) -> None:
    torch_signature, function = OPS[name].torch_signature, getattr(kw, name)
    given = example(torch_signature)
    first = torch_signature.names[0]
    with pytest.raises(TypeError, match=f"{name}\\(\\) has no argument 'colour'"):
        function(**given, colour=1)
    with pytest.raises(TypeError, match=f"{name}\\(\\) got {first} twice"):
        function(given[first], **given)
    with pytest.raises(TypeError, match=f"{name}\\(\\) (is )?missing|is missing"):
        function(**{n: v for n, v in given.items() if n != first})
    with pytest.raises(TypeError, match=r"at most|positional"):
        function(*in_order(torch_signature, given), *[None] * 9)
    with pytest.raises(ValueError, match="kernel must be one of"):
        function(**given, kernel="no such kernel")


x, weight, bias = torch.randn(5, 8), torch.randn(8), torch.randn(8)
q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))

JOINED: tuple[tuple[str, Callable[[], Any], Callable[[], Any]], ...] = (
    ("rms_norm", lambda: kw.rms_norm(x, (8,), weight, 1e-5, residual=x),
     lambda: kw.rms_norm(x, weight, eps=1e-5, residual=x)),
    ("attention", lambda: kw.attention(q, k, v, is_causal=True, window=2),
     lambda: kw.attention(q, k, v, causal="top_left", window=2)),
    ("attention lse", lambda: kw.attention(query=q, key=k, value=v, with_lse=True, softcap=1.0),
     lambda: kw.attention(q, k, v, with_lse=True, softcap=1.0)),
    ("a mask of rows and columns", lambda: kw.attention(q, k, v, torch.ones(6, 6, dtype=torch.bool).tril()),
     lambda: kw.attention(q, k, v, causal="top_left")),
)  # fmt: skip


@pytest.mark.parametrize(("what", "mixed", "own"), JOINED, ids=[j[0] for j in JOINED])
def test_our_arguments_join_torchs(what: str, mixed: Callable[[], Any], own: Callable[[], Any]) -> None:
    same(mixed(), own())


F = torch.nn.functional
ODD: tuple[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...] = (
    (kw.attention, F.scaled_dot_product_attention, (q, k, v), {"is_causal": 1}),
    (kw.attention, F.scaled_dot_product_attention, (q, k, v), {"is_causal": None}),
    (kw.layer_norm, F.layer_norm, (x,), {"normalized_shape": [8.0]}),
    (kw.layer_norm, F.layer_norm, (x,), {"normalized_shape": 8}),
    (kw.rms_norm, F.rms_norm, (x,), {"normalized_shape": "8"}),
    (kw.rms_norm, F.rms_norm, (x, (8,)), {"eps": "1"}),
    (kw.softmax, F.softmax, (), {"input": x, "dim": 1.0}),
    (kw.softmax, F.softmax, (), {"input": x, "dim": 7}),
    (kw.gelu, F.gelu, (), {"input": x, "approximate": "quick"}),
    (kw.linear, F.linear, (), {"input": x, "weight": [1.0]}),
    (kw.linear, F.linear, (), {"input": x, "weight": weight}),
    (kw.cross_entropy, F.cross_entropy, (x,), {"target": torch.rand(5, 8), "label_smoothing": 0.0}),
    (kw.cross_entropy, F.cross_entropy, (x, torch.zeros(5, dtype=torch.int64), None, None, "none"), {}),
    (kw.embedding, F.embedding, (torch.zeros(2, dtype=torch.int64), x, 5), {}),
)


@pytest.mark.parametrize("case", range(len(ODD)))
def test_odd_arguments_end_as_with_torch(case: int) -> None:
    ours, torchs, args, named = ODD[case]
    want, got = outcome(lambda: torchs(*args, **named)), outcome(lambda: ours(*args, **named))
    assert type(got) is type(want)
    if isinstance(want, Exception):
        assert str(got) == str(want)
    else:
        same(got, want)


REFUSED: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = (
    (lambda: kw.layer_norm(x, weight, bias), TypeError, "missing 1 required keyword-only argument: 'eps'"),
    (lambda: kw.layer_norm(x, weight, bias), TypeError, "torch's signature is layer_norm.input, normalized_shape"),
    (lambda: kw.attention(q, k, v, is_causal=True, causal="top_left"), TypeError, "both is_causal and causal"),
    (lambda: kw.attention(q, k, v, dropout_p=0.5, window=3), ValueError, "cannot join window"),
    (lambda: kw.attention(q, k, v, dropout_p=0.5, kernel="scalar"), RuntimeError, "cannot run: dropout_p"),
    (lambda: kw.linear(x), TypeError, "weight is missing"),
    (lambda: kw.gelu(x.double()), TypeError, "x must have dtype float32"),  # the same in both: the contract's word
)


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_refused(case: int) -> None:
    call, error, says = REFUSED[case]
    with pytest.raises(error, match=says):
        call()


def test_gradients_flow_in_torchs_signature() -> None:
    for said in ({}, {"label_smoothing": 0.1}):
        leaf = torch.randn(4, 7, requires_grad=True)
        target = torch.tensor([1, 0, 6, 3])
        kw.cross_entropy(leaf, target, **said).backward()
        got, leaf.grad = leaf.grad, None
        torch.nn.functional.cross_entropy(leaf, target, **said).backward()
        same(got, leaf.grad)


def test_a_kernel_asked_for_runs_in_torchs_signature() -> None:
    same(
        kw.layer_norm(x, (8,), weight, bias, kernel="reference"), torch.nn.functional.layer_norm(x, (8,), weight, bias)
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_is_shown_as_it_is_called(name: str) -> None:
    function, op = getattr(kw, name), OPS[name]
    shown = inspect.signature(function).parameters
    assert {*op.passes["forward"].names, "kernel"} <= shown.keys()
    assert all(p.default in (p.empty, None) or type(p.default) in (int, float, str, bool) for p in shown.values())
    assert OPS[name].torch_signature.signature_text() in function.__doc__


def test_explain_says_why_a_call_is_torchs() -> None:
    with pytest.raises(ValueError, match="torch's own function runs in place of attention: dropout_p"):
        kw.explain("attention", q, k, v, dropout_p=0.5)
    with pytest.raises(ValueError, match="in place of softmax: x must have dtype float32"):
        kw.explain(kw.softmax, input=x.double(), dim=0)
    assert kw.explain("layer_norm", x, (8,), weight).op == "layer_norm"
