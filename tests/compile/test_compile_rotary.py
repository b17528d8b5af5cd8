"""Rotary embeddings that a program writes out: found however they are written, as right as before; and look-alikes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiled_graphs import graphs, leaves_of, reference
from torch import Tensor

from kernelworks.compile import choice
from kernelworks.compile.calls import OpCall, states
from kernelworks.compile.choice import Races, choose_kernels
from kernelworks.compile.race import RegionRaceResult
from kernelworks.compile.region import region_of, with_copy
from kernelworks.compile.replace import misfit, replace_call
from kernelworks.compile.report import Graph
from kernelworks.compile.rotary import rotations

Q = torch.linspace(-3, 3, 2 * 4 * 6 * 16).sin().view(2, 4, 6, 16)
K = torch.linspace(-5, 5, 2 * 2 * 6 * 16).sin().view(2, 2, 6, 16)
ANGLES = torch.linspace(0, 3, 6 * 8).view(6, 8)
HALVES = torch.cat([ANGLES, ANGLES], -1)
WON = RegionRaceResult(120.0, 100.0, (1.2, 1.2), 0.01, False)
Pair = tuple[Tensor, Tensor]


def turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def halves(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    """As transformers writes it."""
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    cos, sin = cos.to(q.dtype)[None].unsqueeze(1), sin.to(q.dtype)[None].unsqueeze(1)
    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def chunks(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    cos, sin = angles.cos(), angles.sin()

    def one(x: Tensor) -> Tensor:
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).type_as(x)

    return one(q), one(k)


def neighbours(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    cos, sin = angles.cos(), angles.sin()

    def one(x: Tensor) -> Tensor:
        a, b = x[..., ::2].float(), x[..., 1::2].float()
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(3).to(x.dtype)

    return one(q), one(k)


def as_complex(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    """As Meta writes it, heads inside positions."""
    turns = torch.polar(torch.ones_like(angles), angles).view(1, 6, 1, 8)

    def one(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.transpose(1, 2).float().reshape(2, 6, -1, 8, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x).transpose(1, 2)

    return one(q), one(k)


def with_pairs(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    table = torch.stack([angles.cos(), angles.sin()], -1)

    def one(x: Tensor) -> Tensor:
        pairs, turn = x.float().reshape(*x.shape[:-1], -1, 2), table.view(1, 1, 6, 8, 2)
        made = torch.stack(
            [
                pairs[..., 0] * turn[..., 0] - pairs[..., 1] * turn[..., 1],
                pairs[..., 1] * turn[..., 0] + pairs[..., 0] * turn[..., 1],
            ],
            -1,
        )
        return made.flatten(3).type_as(x)

    return one(q), one(k)


def partly(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    """The first half of each head is turned, the rest is as it was."""
    cos, sin = (
        torch.cat([angles[:, :4]] * 2, -1).cos().to(q.dtype),
        torch.cat([angles[:, :4]] * 2, -1).sin().to(q.dtype),
    )

    def one(x: Tensor) -> Tensor:
        first, rest = x[..., :8], x[..., 8:]
        return torch.cat([first * cos + turned(first) * sin, rest], -1)

    return one(q), one(k)


WRITTEN: dict[str, tuple[Callable[..., Pair], bool]] = {  # and whether neighbours are paired
    "halves": (halves, False),
    "chunks": (chunks, False),
    "neighbours": (neighbours, True),
    "complex": (as_complex, True),
    "pairs": (with_pairs, True),
    "partly": (partly, False),
}


def found_in(graph: torch.fx.GraphModule) -> list[OpCall]:
    return list(rotations(graph.graph, states(graph.graph)))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in WRITTEN), ("halves", torch.bfloat16), ("complex", torch.bfloat16)],
)
def test_turns_are_known_however_they_are_written(name: str, dtype: torch.dtype) -> None:
    """And replaced, in their region too: as right as before against float64, with gradients."""
    program, interleaved = WRITTEN[name]
    given = (*leaves_of((Q.to(dtype), K.to(dtype))), ANGLES)
    ((graph, inputs),) = graphs(program, *given)
    (call,) = found_in(graph)
    assert call.args[-1] is interleaved and not misfit(call)
    region = region_of(call, states(graph.graph), {})
    assert not isinstance(region, str)
    changed, twins = with_copy(region)
    replace_call(call, "torch", twins.__getitem__)
    changed.graph.lint()
    made = replace_call(call, "torch", lambda node: node)
    assert len(made) == 2
    graph.graph.lint()
    graph.recompile()
    exact = reference(program, Q.to(dtype).double(), K.to(dtype).double(), ANGLES.double())
    for want, got, true in zip(program(*given), graph(*inputs), exact, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        least = 2.0 ** (-6 if dtype is torch.bfloat16 else -20)
        assert (got.double() - true).abs().max() <= 2 * (want.double() - true).abs().max() + least
        flow = torch.linspace(-1, 1, want.numel()).view(want.shape).to(dtype)
        ours, theirs = (
            torch.autograd.grad(t, given[:2], flow, allow_unused=True, retain_graph=True) for t in (got, want)
        )
        for one, other in zip(ours, theirs, strict=True):
            if other is None:
                assert one is None or not one.any()
            else:
                close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
                torch.testing.assert_close(one, other, **close)


def against(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    """Turned the other way: the op with its sines negated, which it is not."""
    cos, sin = HALVES.cos(), HALVES.sin()
    return q * cos - turned(q) * sin, k * cos - turned(k) * sin


def read_between(q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, ...]:
    t = turned(q)
    return q * HALVES.cos() + t * HALVES.sin(), k * HALVES.cos() + turned(k) * HALVES.sin(), t


def other_tables(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    cos, sin = (2 * HALVES).cos(), (2 * HALVES).sin()
    return q * (3 * HALVES).cos() + turned(q) * (3 * HALVES).sin(), k * cos + turned(k) * sin


def of_each_head(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    cos, sin = HALVES.cos().expand(4, 6, 16) * 2, HALVES.sin().expand(4, 6, 16) * 2
    return q * cos + turned(q) * sin, k * cos[:2] + turned(k) * sin[:2]


def swapped(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
    cos, sin = HALVES.cos(), HALVES.sin()
    return q * cos + q.flip(-1) * sin, k * cos + k.flip(-1) * sin


def test_what_only_looks_like_a_turn_is_left() -> None:
    def program(q: Tensor, k: Tensor, angles: Tensor) -> list[tuple[Tensor, ...]]:
        return [each(q, k, angles) for each in (against, read_between, other_tables, of_each_head, swapped)]

    ((graph, _),) = graphs(program, Q, K, ANGLES)
    assert [call.node.name for call in found_in(graph)] == []


def test_tables_that_widen_what_they_turn() -> None:
    """Under autocast a product's 16 bits meet tables of float32: the op turns them in float32."""

    def program(q: Tensor, k: Tensor, angles: Tensor) -> Pair:
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        return q * cos + turned(q) * sin, k * cos + turned(k) * sin

    ((graph, inputs),) = graphs(program, *(given := (Q.bfloat16(), K.bfloat16(), ANGLES)))
    (call,) = found_in(graph)
    assert {t.dtype for t in call.args[:4]} == {torch.float32}
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    torch.testing.assert_close(graph(*inputs), program(*given), rtol=1e-5, atol=1e-6)


def test_turns_ahead_of_attention_are_taken_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first: nothing that one takes away is read by the other."""

    def program(q: Tensor, k: Tensor, v: Tensor, angles: Tensor) -> Tensor:
        q, k = (t.to(v.dtype) for t in halves(q.float(), k.float(), angles))
        k, v = (t[:, :, None].expand(2, 2, 2, 6, 16).reshape(2, 4, 6, 16) for t in (k, v))
        return torch.softmax(q @ k.transpose(2, 3), -1) @ v

    monkeypatch.setattr(choice, "_ways", lambda call: [("torch", "torch")])
    monkeypatch.setattr(choice, "SMALL", 0)
    monkeypatch.setattr(choice.region_race, "forward_speedup", lambda call, kernel: 1.0)
    monkeypatch.setattr(choice.region_race, "recall_race", lambda *args: None)
    for turns in (["attention", "rope"], ["rope", "attention"]):
        places = {name: place for place, name in enumerate(turns)}
        monkeypatch.setattr(choice, "_promise", lambda call, at=places: at.get(call.op.name, 2))
        benchmarked: list[str] = []
        monkeypatch.setattr(
            choice.region_race, "race_region", lambda call, *args, to=benchmarked: to.append(call.op.name) or WON
        )
        torch.compiler.reset()
        ((graph, inputs),) = graphs(program, Q, K, K * 2, ANGLES)
        choose_kernels(graph, Races(100.0, {}), Graph("graph", 1))
        assert benchmarked[:2] == turns
        targets = {str(node.target) for node in graph.graph.nodes}
        assert targets >= {"kernelworks.attention.default", "kernelworks.rope.default"}
        torch.testing.assert_close(graph(*inputs)[0], program(Q, K, K * 2, ANGLES), rtol=1e-4, atol=1e-5)
