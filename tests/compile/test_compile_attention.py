"""Attention that a program writes out, in the graphs that dynamo makes of it: found however it is written, replaced by
what is as right as before, with gradients; and what looks like it, left alone."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled_graphs import graphs, leaves_of, reference
from torch import Tensor, fx

from kernelworks.compile import race
from kernelworks.compile.attention import attentions
from kernelworks.compile.calls import OpCall, states
from kernelworks.compile.choice import TORCH_KERNEL, _ways
from kernelworks.compile.region import region_of, with_copy
from kernelworks.compile.replace import replace_call

Program = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

Q, K, V = (torch.linspace(-n, n, 2 * 4 * 8 * 16).sin().view(2, 4, 8, 16) for n in (3, 5, 7))
FEW = [t[:, :2].contiguous() for t in (K, V)]  # heads
TRIL = torch.ones(1, 1, 8, 8).tril()
BIAS = torch.linspace(-4, 4, 4 * 8 * 8).cos().view(1, 4, 8, 8)


def masked(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(m[:, :, :8, :8] == 0, float("-inf"))
    return F.dropout(F.softmax(scores, dim=-1), 0.1, training=False) @ v


def in_float32(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = torch.matmul(q / 4, k.transpose(2, 3))
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def upcast(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    weights = torch.softmax(q.float() @ k.float().mT * 0.25, -1)
    return (weights @ v.float()).to(q.dtype)


def chosen_by(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.where(m > 0, q @ k.transpose(3, 2), -math.inf).softmax(-1) @ v


def chosen_against(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = q @ k.transpose(3, 2)
    return torch.where(m == 0, torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype), scores).softmax(-1) @ v


def flat(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """Heads and entries of the batch as one dimension, the scale in the product."""
    q, k, v = (t.reshape(8, 8, 16) for t in (q, k, v))
    scores = torch.baddbmm(torch.empty(8, 8, 8, dtype=q.dtype), q, k.transpose(1, 2), beta=0, alpha=0.25)
    return torch.bmm(scores.softmax(-1), v).view(2, 4, 8, 16)


def flat_and_masked(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    q, k, v = (t.reshape(8, 8, 16) for t in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(2, 4, 8, 8).masked_fill(m == 0, -math.inf)
    return torch.bmm(scores.softmax(-1).view(8, 8, 8), v).view(2, 4, 8, 16)


def flat_with_slopes(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """Slopes of positions are added within the product, a mask after it."""
    q, k, v = (t.reshape(8, 8, 16) for t in (q, k, v))
    slopes = m[0, 0, :, None, :].expand(8, 1, 8)
    scores = slopes.baddbmm(batch1=q, batch2=k.transpose(1, 2), beta=1.0, alpha=0.25).view(2, 4, 8, 8)
    return torch.bmm(scores.softmax(-1).view(8, 8, 8), v).view(2, 4, 8, 16)


def by_equations(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / 4
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def heads_inside(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = torch.einsum("blhd,bshd->bhls", q, k * 0.25).masked_fill(m == 0, -math.inf)
    return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), v)


def repeated(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return masked(q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1), m)


def expanded(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    k, v = (t[:, :, None].expand(2, 2, 2, 8, 16).reshape(2, 4, 8, 16) for t in (k, v))
    return (q @ k.transpose(2, 3) * 0.25).softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    q = q.view(2, 2, 2, 8, 16)
    weights = torch.einsum("bhgqd,bhkd->bhgqk", q, k).masked_fill(m[0, 0] == 0, -math.inf).softmax(-1)
    return torch.einsum("bhgqk,bhkd->bhgqd", weights, v).reshape(2, 4, 8, 16)


def added_from_bools(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    low = torch.where(m > 0, 0.0, -math.inf).to(q.dtype)
    return (q @ k.transpose(2, 3) * 0.25 + low).softmax(-1) @ v


def added_from_positions(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    low = torch.full((8, 8), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)[None, None]
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25
    scores += low
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def causal(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    place = torch.arange(8)
    hidden = place[None, :] > place[:, None]
    return (q @ k.transpose(2, 3)).masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1) @ v


def causal_by_indices(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """As transformers makes it, for each entry of the batch, when nothing else is masked."""
    batch, places = torch.arange(2)[:, None, None, None], torch.arange(8).expand(2, -1)
    rows, columns = torch.arange(8)[None, None, :, None], torch.arange(8)[None, None, None, :]
    seen = torch.ones((), dtype=torch.bool) & (places[batch, columns] <= places[batch, rows])
    low = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    return (q @ k.transpose(2, 3) + low).softmax(-1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return (m + q @ k.transpose(2, 3) * 0.25).softmax(-1) @ v


def added_times(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return ((q @ k.transpose(2, 3) - m) / 4).softmax(-1) @ v


def twice_masked(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    low = torch.zeros(1, 1, 8, 8, dtype=q.dtype).masked_fill(m == 0, -math.inf)
    scores = (q @ k.transpose(2, 3) + low).masked_fill(torch.arange(8) == 5, -math.inf)
    return scores.softmax(-1) @ v


def no_dropout(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return F.dropout((q @ k.transpose(2, 3)).softmax(-1), p=0.0, training=True) @ v


def of_one_head(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    q, k, v = q[:, 0], k[:, 0], v[:, 0]
    return (torch.bmm(q, k.mT) / 3).masked_fill(m[0] == 0, -math.inf).softmax(-1) @ v


def cast(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return masked(q, k, v, m)


def capped(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = torch.tanh(torch.matmul(q, k.transpose(2, 3)) * 0.5 / 3.0) * 3.0
    return scores.masked_fill(m == 0, -math.inf).softmax(-1) @ v


# name -> (program, how the op does it)
DECOMPOSED: dict[str, tuple[Program, str]] = {
    "masked": (masked, "mask"),
    "in float32": (in_float32, "plain"),
    "upcast": (upcast, "plain"),
    "chosen by": (chosen_by, "mask"),
    "chosen against": (chosen_against, "mask"),
    "flat": (flat, "plain"),
    "flat and masked": (flat_and_masked, "mask"),
    "by equations": (by_equations, "plain"),
    "heads inside": (heads_inside, "mask"),
    "repeated": (repeated, "mask"),
    "expanded": (expanded, "plain"),
    "grouped": (grouped, "mask"),
    "added from bools": (added_from_bools, "mask"),
    "added from positions": (added_from_positions, "causal"),
    "causal": (causal, "causal"),
    "causal by indices": (causal_by_indices, "causal"),
    "added": (added, "added"),
    "added times": (added_times, "added"),
    "twice masked": (twice_masked, "mask"),
    "no dropout": (no_dropout, "plain"),
    "of one head": (of_one_head, "mask"),
    "autocast": (cast, "mask"),
    "capped": (capped, "mask"),
    "capped plainly": (lambda q, k, v, m: (0.5 * (q @ k.transpose(2, 3) / 2).tanh()).softmax(-1) @ v, "plain"),
}


def arguments(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    k, v = FEW if name in ("repeated", "expanded", "grouped") else (K, V)
    last = BIAS if name in ("added", "added times") else TRIL
    return (*leaves_of(tuple(t.to(dtype) for t in (Q, k, v))), last.to(dtype) if last is BIAS else last)


def kind_of(call: OpCall) -> str:
    named = dict(zip(call.op.passes["forward"].names, call.args, strict=True))
    if call.added is not None:
        return "added"
    return "causal" if named["causal"] else "mask" if named["mask"] is not None else "plain"


def found_in(graph: fx.GraphModule) -> list[OpCall]:
    return list(attentions(graph.graph, states(graph.graph)))


def close_to(got: Tensor, want: Tensor, exact: Tensor) -> None:
    """As near to what float64 gives as the program was, but for the last rounding and sums in another order."""
    error, was = ((t.double() - exact).abs().max() for t in (got, want))
    least = 2.0 ** (-7 if got.dtype is torch.bfloat16 else -20) * exact.abs().max()
    assert error <= 2 * was + least, (float(error), float(was))


CASTING = ("in float32", "upcast", "chosen against", "added from positions", "repeated")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in DECOMPOSED), *((name, torch.bfloat16) for name in CASTING)],
)
def test_attention_is_known_however_it_is_written(name: str, dtype: torch.dtype) -> None:
    """And replaced, in its region too: as right as before against float64, with gradients."""
    program, kind = DECOMPOSED[name]
    given = arguments(name, dtype)
    ((graph, inputs),) = graphs(program, *given)
    (call,) = found_in(graph)
    assert kind_of(call) == kind
    region = region_of(call, states(graph.graph), {})
    assert not isinstance(region, str)
    changed, twins = with_copy(region)
    replace_call(call, "torch", twins.__getitem__)
    changed.graph.lint()
    replace_call(call, "torch", lambda node: node)
    for each in (changed, graph):
        targets = {str(node.target) for node in each.graph.nodes}
        assert not any(word in target for target in targets for word in ("softmax", "matmul", "bmm", "einsum"))
    graph.recompile()
    want, got = program(*given), graph(*inputs)[0]
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.is_contiguous() or got.stride() == want.stride()
    doubled = leaves_of(tuple(t.detach().double() if t.requires_grad else t.double() for t in given))
    exact = reference(masked if name == "autocast" else program, *doubled)
    close_to(got, want, exact)
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape)
    grads = [
        torch.autograd.grad(result, leaves[:3], flow.to(result.dtype))
        for result, leaves in ((got, given), (want, given), (exact, doubled))
    ]
    for ours, theirs, exactly in zip(*grads, strict=True):
        close_to(ours, theirs, exactly)


def written_beside(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """Something else is written to between the scores and their softmax, a bias is added that was made there."""
    scores = torch.matmul(q, k.transpose(2, 3))
    buckets = torch.zeros(1, 4, 8, 8, dtype=q.dtype)
    buckets += m
    scores += buckets + torch.where(torch.arange(8) < 6, 0.0, -torch.inf).to(q.dtype)
    return scores.softmax(-1) @ v


def test_what_is_written_beside_attention_does_not_hide_it() -> None:
    given = (*leaves_of((Q, K, V)), BIAS)
    ((graph, inputs),) = graphs(written_beside, *given)
    (call,) = found_in(graph)
    assert kind_of(call) == "added"
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    with torch.no_grad():
        close_to(graph(*inputs)[0], written_beside(*given), written_beside(*(t.double() for t in given)))


def test_a_bias_of_each_head_stays_added_in_a_flat_product() -> None:
    given = (*leaves_of((Q, K, V)), torch.linspace(-1, 1, 2 * 4 * 8).view(1, 1, 8, 8))
    ((graph, inputs),) = graphs(flat_with_slopes, *given)
    (call,) = found_in(graph)
    assert kind_of(call) == "added"
    assert _ways(call) == [(TORCH_KERNEL, TORCH_KERNEL)]
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    with torch.no_grad():
        close_to(graph(*inputs)[0], flat_with_slopes(*given), flat_with_slopes(*(t.double() for t in given)))


def test_heads_are_not_repeated_for_the_op() -> None:
    for name in ("repeated", "expanded", "grouped"):
        ((graph, _),) = graphs(DECOMPOSED[name][0], *arguments(name, torch.float32))
        (call,) = found_in(graph)
        assert [t.shape[1] for t in call.args[:3]] == [4, 2, 2], name


# ---------------------------------------------------------------- what only looks like it

ROW = torch.linspace(0.5, 2, 8).view(8, 1)
LEARNED = torch.tensor(0.25)

UNLIKE: dict[str, Callable[..., object]] = {
    "another dimension": lambda q, k, v, m: (q @ k.transpose(2, 3)).softmax(-2) @ v,
    "without a softmax": lambda q, k, v, m: (q @ k.transpose(2, 3)) @ v,
    "dropout": lambda q, k, v, m: F.dropout((q @ k.transpose(2, 3)).softmax(-1), 0.5) @ v,
    "capped once it is masked": lambda q, k, v, m: (
        (torch.tanh((q @ k.transpose(2, 3)).masked_fill(m == 0, -math.inf) / 3.0) * 3.0).softmax(-1) @ v
    ),
    "a tangent that is added to": lambda q, k, v, m: ((q @ k.transpose(2, 3)).tanh() + BIAS).softmax(-1) @ v,
    "a tangent of a sum": lambda q, k, v, m: (q @ k.transpose(2, 3) + BIAS).tanh().softmax(-1) @ v,
    "a low score": lambda q, k, v, m: (q @ k.transpose(2, 3)).masked_fill(m == 0, -1e4).softmax(-1) @ v,
    "a mask after it": lambda q, k, v, m: (q @ k.transpose(2, 3)).softmax(-1).masked_fill(m == 0, 0.0) @ v,
    "a bias after it": lambda q, k, v, m: ((q @ k.transpose(2, 3)).softmax(-1) + m) @ v,
    "a scale of each row": lambda q, k, v, m: (q @ k.transpose(2, 3) * ROW).softmax(-1) @ v,
    "a scale that is learned": lambda q, k, v, m: (q @ k.transpose(2, 3) * LEARNED).softmax(-1) @ v,
    "a scale after it": lambda q, k, v, m: (q @ k.transpose(2, 3)).softmax(-1) * 0.5 @ v,
    "weights that are read": lambda q, k, v, m: ((w := (q @ k.transpose(2, 3)).softmax(-1)) @ v, w),
    "scores that are read": lambda q, k, v, m: ((s := q @ k.transpose(2, 3)).softmax(-1) @ v, s.amax()),
    "heads turned round": lambda q, k, v, m: (q @ k.transpose(2, 3)).flip(1).softmax(-1) @ v,
    "keys in another order": lambda q, k, v, m: (q @ k.transpose(2, 3)).softmax(-1).transpose(2, 3) @ v,
    "a mask of numbers": lambda q, k, v, m: (q @ k.transpose(2, 3) * m).softmax(-1) @ v,
    "two low numbers": lambda q, k, v, m: (
        (q @ k.transpose(2, 3)).masked_fill(m == 0, -math.inf).masked_fill(m < 0, -3e38).softmax(-1) @ v
    ),
}  # fmt: skip


def test_what_only_looks_like_attention_is_left() -> None:
    def program(*given: Tensor) -> list[object]:
        return [each(*given) for each in UNLIKE.values()]

    ((graph, _),) = graphs(program, *leaves_of((Q, K, V)), TRIL)
    products = [node for node in graph.graph.nodes if node.target in (operator.matmul, torch.matmul)]
    assert len(products) == 2 * len(UNLIKE)
    found = [products.index(call.node) // 2 for call in found_in(graph)]
    assert [list(UNLIKE)[place] for place in found] == []


def test_values_that_change_meanwhile_are_read_when_they_were() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        values = v.clone()
        keys = values.transpose(2, 3)
        scores = q @ keys
        values.mul_(2)
        return scores.softmax(-1) @ values

    ((graph, _),) = graphs(program, Q, K, V, TRIL)
    assert not found_in(graph)


def test_attention_along_the_heads_is_that_of_other_tensors() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return (q.transpose(2, 3) @ k).softmax(-1) @ v.transpose(2, 3)

    ((graph, inputs),) = graphs(program, Q, K, V, TRIL)
    (call,) = found_in(graph)
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    torch.testing.assert_close(graph(*inputs)[0], program(Q, K, V, TRIL), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- what sees nothing


@pytest.mark.parametrize("program", [masked, chosen_by, chosen_against, added_from_bools])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_that_sees_nothing_gives_what_it_gave(program: Program, dtype: torch.dtype) -> None:
    """NaN where its scores were all minus infinity, the mean of all values where they were all alike; the op makes 0 of
    it."""
    mask = TRIL.clone()
    mask[..., 2, :] = 0
    given = (*(t.to(dtype) for t in (Q, K, V)), mask)
    ((graph, inputs),) = graphs(program, *given)
    (call,) = found_in(graph)
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    want, got = program(*given), graph(*inputs)[0]
    assert bool(want[:, :, 2].isnan().all()) == (program is not chosen_against)
    assert not want[:, :, 1].isnan().any() and got.dtype == dtype and got.stride() == want.stride()
    close = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want, equal_nan=True, **close)


def low_added(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return (q @ k.transpose(2, 3) * 0.25 + (1.0 - (m > 0).to(q.dtype)) * -3e38).softmax(-1) @ v


def low_added_of_few_heads(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return low_added(q, *(t[:, :2].repeat_interleave(2, 1) for t in (k, v)), m)


def low_written(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return (q @ k.transpose(2, 3) * 0.25).masked_fill(m == 0, -3e38).softmax(-1) @ v


@pytest.mark.parametrize("program", [low_added, low_added_of_few_heads, low_written])
def test_a_query_that_sees_nothing_has_the_gradients_it_had(program: Program) -> None:
    """What is added to a score leaves it its gradient, what is written over it does not."""
    mask = TRIL.clone()
    mask[..., 2, :] = 0
    given = (*leaves_of((Q, K, V)), mask)
    ((graph, inputs),) = graphs(program, *given)
    (call,) = found_in(graph)
    assert kind_of(call) == "mask" and call.blank is not None
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    want, got = program(*given), graph(*inputs)[0]
    doubled = (*leaves_of(tuple(t.double() for t in (Q, K, V))), mask)
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape)
    ours, theirs, true = (
        torch.autograd.grad(result, leaves[:3], flow.to(result.dtype))
        for result, leaves in ((got, given), (want, given), (program(*doubled), doubled))
    )
    for one, other, exactly in zip(ours, theirs, true, strict=True):
        close_to(one, other, exactly)
    assert bool((theirs[0][:, :, 2] != 0).any()) == (program is not low_written)


def test_a_low_number_of_a_wider_dtype_is_one_of_the_narrower_too() -> None:
    """Under autocast it would be rounded to minus infinity, and a query that sees nothing would get NaN."""

    def program(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            low = (1.0 - (m > 0).float()) * torch.finfo(torch.float32).min
            return (q @ k.transpose(2, 3) * 0.25 + low).softmax(-1) @ v

    mask = TRIL.clone()
    mask[..., 2, :] = 0
    given = (*leaves_of((Q, K, V)), mask)
    ((graph, inputs),) = graphs(program, *given)
    (call,) = found_in(graph)
    assert kind_of(call) == "mask"
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    want, got = program(*given), graph(*inputs)[0]
    assert got.dtype == want.dtype and want.isfinite().all()
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
    ours, theirs = (torch.autograd.grad(t.float().sum(), given[:3]) for t in (got, want))
    torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)


def test_a_mask_of_numbers_from_outside_stays_added() -> None:
    """What is no bool may be any number; a bias and a low number have gradients that torch's function rounds."""

    def of_numbers(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return (q @ k.transpose(2, 3) + (1.0 - m) * -3e38).softmax(-1) @ v

    def biased(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return (q @ k.transpose(2, 3) + (m + torch.where(m > 0, 0.0, -3e38))).softmax(-1) @ v

    for program, kinds in ((of_numbers, ["added"]), (biased, ["added"])):
        ((graph, _),) = graphs(program, Q, K, V, TRIL)
        assert [kind_of(call) for call in found_in(graph)] == kinds


def test_masks_of_a_race_hide_nothing() -> None:
    for program in (masked, chosen_by, added_from_bools):
        ((graph, _),) = graphs(program, Q, K, V, TRIL)
        (call,) = found_in(graph)
        region = region_of(call, states(graph.graph), {})
        assert not isinstance(region, str)
        (seen,) = (s for s, a in zip(call.sources, call.args, strict=True) if getattr(a, "dtype", None) is torch.bool)
        clear = race._clear(call)
        view = seen.of(lambda node, c=clear: torch.full_like(node.meta["example_value"], c[node], device="cpu"))
        assert set(clear) and bool(torch.as_tensor(view.shape == (1, 1, 8, 8)))


# ---------------------------------------------------------------- sizes that vary


@pytest.mark.parametrize("name", ["masked", "in float32", "heads inside", "repeated"])
def test_attention_of_sizes_that_vary(name: str) -> None:
    """What is found by the sizes of the first call serves others."""
    program = DECOMPOSED[name][0]
    given = [t.detach() for t in arguments(name, torch.float32)]
    for t in given[:3]:
        torch._dynamo.mark_dynamic(t, 0)
    ((graph, inputs),) = graphs(program, *given)
    (call,) = found_in(graph)
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    others = {id(t): t.repeat(3, 1, 1, 1) if t.shape[0] == 2 else t for t in inputs if isinstance(t, Tensor)}
    more = [others[id(t)] if isinstance(t, Tensor) else 6 for t in inputs]
    want = program(*(torch.cat([t] * 3) if t.shape[0] == 2 else t for t in given))
    torch.testing.assert_close(graph(*more)[0], want, rtol=1e-4, atol=1e-5)


def roped(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def test_attention_behind_rotary_embeddings_is_known() -> None:
    cos, sin = torch.linspace(0, 3, 8 * 16).view(8, 16).cos(), torch.linspace(0, 3, 8 * 16).view(8, 16).sin()

    def program(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return masked(roped(q, cos, sin), roped(k, cos, sin), v, m)

    ((graph, inputs),) = graphs(program, Q, K, V, TRIL)
    (call,) = found_in(graph)
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    torch.testing.assert_close(graph(*inputs)[0], program(Q, K, V, TRIL), rtol=1e-4, atol=1e-5)
