"""Schedules compute what the graph says, whatever moves made them; what would not is refused, or the judge finds it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scheduled import PROBLEMS, _functions, changed, nest, ran, share

from kernelworks.judge import Budget, judge_all
from kernelworks.judge.formats import read_problem
from kernelworks.machine import machine
from kernelworks.records import Peaks
from kernelworks.search.schedule import emit
from kernelworks.search.schedule.candidate import candidate_of
from kernelworks.search.schedule.derive import NotDerivable, derive_nest
from kernelworks.search.schedule.emit import STREAMS, emit_cpp
from kernelworks.search.schedule.moves import MOVES, apply, replay_steps
from kernelworks.search.schedule.nest import kernel_as_json, kernel_from_json
from kernelworks.search.schedule.openings import opening
from kernelworks.search.schedule.plan import STREAMING_FEATURES, Illegal, Schedule, make_plan, naive
from kernelworks.search.schedule.trace import nest_of

MANY = 12  # moves


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_schedule_of_many_moves_computes_the_same(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kernel, call, inputs = nest(name)
    for seed in range(8 if request.config.getoption("--all") else 1):
        schedule, steps = changed(kernel, seed, MANY)
        assert len({n for n, _ in steps}) > 1
        answer = ran(make_plan(kernel, schedule), call, inputs, tmp_path / str(seed))
        assert share(answer, call, inputs) <= 1, steps


def test_the_plain_nest_computes_the_same(tmp_path: Path) -> None:
    for name in ("layer", "windows", "loss"):
        kernel, call, inputs = nest(name)
        assert share(ran(make_plan(kernel, naive(kernel)), call, inputs, tmp_path / name), call, inputs) <= 1


def test_functions_hold_on_vectors_and_on_what_is_left_of_them(tmp_path: Path) -> None:
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 88.7, -87.5, -104.0, 3e38])
    x = torch.cat([special, 4 * torch.randn(500), torch.logspace(-37, 38, 203), special])
    kernel = derive_nest(_functions, [x])
    schedule = naive(kernel)
    for stage in kernel.stages:
        schedule = apply(kernel, schedule, "vectorise", {"at": stage.name, "dim": "i", "width": 16})
    finite = x.isfinite()
    answers = ran(make_plan(kernel, schedule), _functions, [x], tmp_path)
    assert share(tuple(a[finite] for a in answers), _functions, [x[finite]]) <= 1
    for got, want in zip(answers, _functions(x), strict=True):
        known = ~finite & ~want.isnan()  # torch's own gelu of an infinity is none
        torch.testing.assert_close(got[known], want[known])
        assert got[x.isnan()].isnan().all()


def test_a_schedule_is_json_and_prints_one_text() -> None:
    kernel, *_ = nest("layer")
    schedule, _ = changed(kernel, 3, MANY)
    again = Schedule.from_json(json.loads(json.dumps(schedule.as_json())))
    other = kernel_from_json(json.loads(json.dumps(kernel_as_json(kernel))))
    assert again == schedule
    assert candidate_of(make_plan(other, again)) == candidate_of(make_plan(kernel, schedule))
    with pytest.raises(Illegal, match="no schedule: KeyError"):
        Schedule.from_json({"groups": [{}]})


# ---------------------------------------------------------------- what is legal


def _softmax() -> Any:
    return nest("softmax")[0]


def test_every_move_is_legal_somewhere() -> None:
    """A plain softmax by hand, and a product, with each of the moves."""
    kernel = _softmax()
    top, powers, _, quotient = (s.name for s in kernel.stages)
    steps = [
        ("fuse", {"at": top, "shared": ["i"]}), ("fuse", {"at": top, "shared": ["i"]}),
        ("fuse", {"at": top, "shared": ["i"]}), ("join", {"at": powers}),
        ("vectorise", {"at": top, "dim": "j", "width": 16}), ("vectorise", {"at": powers, "dim": "j", "width": 8}),
        ("unroll", {"at": top, "dim": "j", "count": 4, "partials": 4}), ("partials", {"at": top, "count": 2}),
        ("parallel", {"at": top, "loops": 1, "grain": 2}), ("part_ways", {"at": quotient}),
    ]  # fmt: skip
    schedule, done = replay_steps(kernel, naive(kernel), steps)
    assert done == steps
    text = emit_cpp(make_plan(kernel, schedule))
    assert (
        "omp parallel for schedule(static, 2)" in text and "exp_" in text and f"alignas(64) float {powers}" not in text
    )
    product, *_ = nest("products")
    (sums, last) = (s.name for s in product.stages)
    beside = {"beside": "j", "rows": 4, "pack": True}
    width, stores = next((w, s) for w, s in reversed(STREAMS.items()) if STREAMING_FEATURES[w] in machine().features)
    more = [
        ("factor", {"at": sums, "kept": "l"}), ("finish", {"at": sums, "stage": last}),
        ("register_block", {"at": sums, "dim": "k", "width": width, "count": 2, **beside}),
        ("tile", {"at": sums, "sizes": {"l": 8}}), ("pack", {"at": sums, "number": 0, "order": ["i", "lo", "li", "j"]}),
        ("reorder", {"at": sums, "order": ["ko", "i", "j", "ki", "li", "lo"]}), ("stream", {"at": sums}),
    ]  # fmt: skip
    schedule, done = replay_steps(product, naive(product), more)
    assert [n for n, _ in done] == [n for n, _ in more[1:]]  # one dimension alone is reduced: nothing to factor
    assert stores in emit_cpp(make_plan(product, schedule))
    whole = derive_nest(lambda x: x.sum(), [torch.randn(8, 16)])
    assert apply(whole, naive(whole), "factor", {"at": whole.stages[0].name, "kept": "i"}).factor
    assert apply(kernel, naive(kernel), "inline", {"stage": powers}).inline == (powers,)
    used = {n for n, _ in (*steps, *more)} | {"inline"}
    assert used == MOVES.keys()


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_opening_is_a_schedule(name: str) -> None:
    kernel, *_ = nest(name)
    for seed in range(30):
        schedule, steps = opening(kernel, random.Random(seed))
        assert replay_steps(kernel, naive(kernel), steps) == (schedule, steps)


def test_the_page_lists_every_move() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/reference/search-schedule.md").read_text(encoding="utf-8")
    lines = [f"| {m.name} | {m.legal} | {m.costs} | {', '.join(m.bottlenecks)} |" for m in MOVES.values()]
    section = page.partition("## Moves")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| ") and "| legal" not in line] == lines


ILLEGAL = (
    ("tile", {"at": "top", "sizes": {"j": 7}}, "no whole number of 7"),
    ("tile", {"at": "top", "sizes": {"z": 7}}, "no dimension z"),
    ("vectorise", {"at": "top", "dim": "j", "width": 5}, "5 lanes"),
    ("vectorise", {"at": "powers", "dim": "i", "width": 8}, "does not write neighbours"),
    ("unroll", {"at": "top", "dim": "j", "count": 200}, "200 copies"),
    ("unroll", {"at": "top", "dim": "j", "count": 4, "partials": 3}, ""),
    ("partials", {"at": "powers", "count": 2}, "2 accumulators"),
    ("parallel", {"at": "total", "loops": 2}, "2 loops shared"),
    ("parallel", {"at": "total", "loops": 1, "grain": -1}, "grain"),
    ("reorder", {"at": "total", "order": ["j", "i"]}, "inside one over what is reduced"),
    ("fuse", {"at": "top", "shared": ["j"]}, "no loop j to share"),
    ("fuse", {"at": "powers", "shared": ["i", "j"]}, "no loop j to share"),
    ("join", {"at": "top"}, "no pass comes after"),
    ("finish", {"at": "top", "stage": "powers"}, "other loops"),
    ("inline", {"stage": "total"}, "reduces"),
    ("inline", {"stage": "quotient"}, "is asked for"),
    ("factor", {"at": "total", "kept": "j"}, "none of two that it could keep"),
    ("pack", {"at": "total", "number": 0, "order": ["j"]}, "moves with i, j"),
    ("stream", {"at": "quotient"}, "without a vector"),
    ("part_ways", {"at": "top"}, "the first of its group"),
    ("wish", {"at": "top"}, "no move 'wish'"),
    ("vectorise", {"at": "nothing", "dim": "j", "width": 8}, "no stage nothing"),
    ("vectorise", {"where": "top"}, "TypeError"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "args", "said"), ILLEGAL, ids=lambda v: str(v)[:40])
def test_what_would_change_the_meaning_is_refused(name: str, args: dict[str, Any], said: str) -> None:
    kernel = _softmax()
    called = dict(zip(("top", "powers", "total", "quotient"), (s.name for s in kernel.stages), strict=True))
    given = {k: called.get(v, v) if isinstance(v, str) else v for k, v in args.items()}
    if said:
        with pytest.raises(Illegal, match=said):
            apply(kernel, naive(kernel), name, given)
    else:  # as many accumulators as the copies allow
        apply(kernel, naive(kernel), name, given)


def test_passes_in_the_wrong_order_are_refused() -> None:
    kernel = _softmax()
    plain = naive(kernel)
    with pytest.raises(Illegal, match="written after it"):
        make_plan(kernel, Schedule(plain.groups[::-1]))
    with pytest.raises(Illegal, match="the kernel has"):
        make_plan(kernel, Schedule(plain.groups[1:]))
    fused, done = replay_steps(
        kernel, plain, [("fuse", {"at": kernel.stages[n].name, "shared": ["i"]}) for n in (0, 0, 0)]
    )
    assert len(done) == 3
    with pytest.raises(Illegal, match="before it is all there"):  # exponentials need the whole row's maximum
        apply(kernel, fused, "join", {"at": kernel.stages[0].name})
    windows, *_ = nest("windows")
    padded, convolved = windows.stages[0].name, windows.stages[1].name
    assert windows.buffers[padded].zeroed
    with pytest.raises(Illegal, match="elsewhere than where their common loops stand"):
        apply(windows, naive(windows), "fuse", {"at": padded, "shared": [windows.stages[0].dims[0]]})
    with pytest.raises(Illegal, match="pads"):
        apply(windows, naive(windows), "inline", {"stage": padded})
    assert convolved in {s.name for s in windows.stages}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: torch.cumsum(x, 1), "aten::cumsum has no rule"),
        (lambda x: F.dropout(x, 0.5), "has no rule"),
        (lambda x: x.double().sum(), "conversion to torch.float64"),
        (lambda x: x > 0, "an answer that is no tensor of float32"),
        (lambda x: x[: int(x.sum())], "cannot be traced"),
    ],
)
def test_what_has_no_rule_is_declined_by_name(call: Any, said: str) -> None:
    with pytest.raises(NotDerivable, match=said):
        derive_nest(call, [torch.randn(4, 6)])


# ---------------------------------------------------------------- before the judge

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return torch.softmax(x * self.scale, 1)


def get_inputs():
    return [torch.randn(40, 101)]


def get_init_inputs():
    return [101]
"""
LITTLE = Budget(reference_s=0.5, most_cases=6, many=12, many_s=0.5, looks=0, shapes=0)


def test_a_broken_move_is_caught_by_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ceilings: Peaks) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM, encoding="utf-8")
    problem = read_problem(tmp_path / "problem.py")
    kernel = nest_of(problem)  # in a process of its own
    schedule = naive(kernel)
    for stage in kernel.stages:
        schedule = apply(kernel, schedule, "vectorise", {"at": stage.name, "dim": "j", "width": 16})
    (tmp_path / "honest.py").write_text(candidate_of(make_plan(kernel, schedule)), encoding="utf-8")
    whole = emit._Nest.segments
    monkeypatch.setattr(emit._Nest, "segments", lambda nest, dim: whole(nest, dim)[:1])  # forgets what is left over
    (tmp_path / "broken.py").write_text(candidate_of(make_plan(kernel, schedule)), encoding="utf-8")
    monkeypatch.undo()
    honest, broken = judge_all(
        [tmp_path / "honest.py", tmp_path / "broken.py"], problem, budget=LITTLE, peaks=ceilings, threads=1
    )
    assert (honest.verdict, honest.language, honest.weights) == ("right", "c++", "the reference's"), honest.reasons
    assert "kernel" in honest.kernels and honest.worst is not None and 0 < honest.worst <= 1
    assert broken.verdict == "refused" and "wrong answer" in {c.kind for c in broken.reasons}
