"""The proposer: what it proposes first, what it makes of verdicts, and that it repeats nothing but itself."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from scheduled import PROBLEMS, share

from kernelworks.dispatch.op import OPS
from kernelworks.judge.formats import op_packages
from kernelworks.judge.formats.loading import module_of
from kernelworks.judge.problem import Problem, Shape
from kernelworks.records.judgement import Judgement, Pace, Speed
from kernelworks.search.proposer import Draft, StoredCandidate
from kernelworks.search.schedule import ScheduleRewriting, evolution
from kernelworks.search.schedule.derive import derive_nest
from kernelworks.search.schedule.plan import Schedule, make_plan, naive

PROBLEM = Problem("rows", "kernelbench", {}, "kernelworks.judge.formats.kernelbench", "Model", (Shape("own"),))
JUDGED = Judgement(
    candidate="c", problem="rows", format="kernelbench", language="c++", verdict="right", reasons=(), remarks=(),
    worst=0.1, calls=1, elements=1, draws=(), shapes=(), bound=(), paces=(), speeds=(), limit_s=None, bound_by="",
    peak="", weights="", kernels=(), kept_from=(), open_to=(), threads=1, build_s=0.0, seconds=0.0, date="",
)  # fmt: skip


@pytest.fixture
def proposer(monkeypatch: pytest.MonkeyPatch) -> ScheduleRewriting:
    call, inputs = PROBLEMS["softmax"]
    monkeypatch.setattr(evolution, "nest_of", lambda problem: derive_nest(call, inputs()))
    return ScheduleRewriting(seed=5)


def seen(draft: Draft, number: int, ratio: float, waits: str = "latency") -> StoredCandidate:
    pace, speed = Pace("candidate", 1 / ratio, 0.0, 1.0, 9), Speed("eager", ratio, ratio, ratio, False)
    return StoredCandidate(
        f"id{number}", number, draft, dataclasses.replace(JUDGED, paces=(pace,), speeds=(speed,), bound_by=waits)
    )


def test_the_first_draft_is_the_plain_nest_and_none_comes_twice(proposer: ScheduleRewriting) -> None:
    (first,) = proposer.propose(PROBLEM, [], 1)
    assert first.note == "the plain loop nest" and first.detail["steps"] == [] and first.language == "c++"
    assert "#pragma" not in first.code
    known, drafts = [seen(first, 0, 0.1)], [first]
    for number in range(1, 13):
        made = proposer.propose(PROBLEM, known, 2)
        assert len(made) == 2
        drafts += made
        known.append(seen(made[0], number, random.Random(number).random()))
        proposer.observe_verdict(known[-1])
    codes = [d.code for d in drafts]
    assert len(set(codes)) == len(codes)
    assert all(d.note == "an opening" for d in drafts[1:5]) and sum(len(d.parents) == 1 for d in drafts) > 4
    kernel = proposer.kernel(PROBLEM)
    assert kernel is not None
    for draft in drafts:  # what is kept of a draft makes it again
        assert evolution.candidate_of(make_plan(kernel, Schedule.from_json(draft.detail["schedule"]))) == draft.code


def test_the_same_seed_proposes_the_same(proposer: ScheduleRewriting) -> None:
    other = ScheduleRewriting(seed=5)
    assert proposer.propose(PROBLEM, [], 6) == other.propose(PROBLEM, [], 6)
    assert proposer.propose(PROBLEM, [], 6) != ScheduleRewriting(seed=6).propose(PROBLEM, [], 6)


def test_what_the_parent_waits_on_guides_the_moves(proposer: ScheduleRewriting) -> None:
    kernel = proposer.kernel(PROBLEM)
    assert kernel is not None
    plain = naive(kernel)

    def tried(waits: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for number in range(150):
            _, steps = proposer._changed(kernel, plain, [], waits, random.Random(number), 1)
            found.update(name for name, _ in steps)
        return found

    memory, latency = tried("memory DRAM"), tried("latency")
    assert memory["fuse"] + memory["tile"] > 0 and latency["vectorise"] > 1.5 * memory["vectorise"]


def test_the_quicker_parents_are_changed_more_often(proposer: ScheduleRewriting) -> None:
    first, *rest = proposer.propose(PROBLEM, [], 8)
    known = [seen(first, 0, 0.1), *(seen(d, n, 0.2 * n) for n, d in enumerate(rest, 1))]
    wrong = dataclasses.replace(known[3], judgement=dataclasses.replace(JUDGED, verdict="refused"))
    drafts = [d for _ in range(12) for d in proposer.propose(PROBLEM, [*known[:3], wrong, *known[4:]], 5)]
    parents = Counter(p for d in drafts for p in d.parents)
    assert parents["id3"] == 0
    assert sum(parents[f"id{n}"] for n in (5, 6, 7)) > sum(parents[f"id{n}"] for n in (0, 1, 2))


def test_of_an_op_of_ours_the_draft_is_a_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call, inputs = PROBLEMS["tanh_gelu"]
    monkeypatch.setattr(evolution, "nest_of", lambda problem: derive_nest(call, inputs()))
    (draft,) = ScheduleRewriting().propose(dataclasses.replace(PROBLEM, format="op", entry="gelu"), [], 1)
    (x,) = inputs()
    answer = module_of("scheduled_function", draft.code, tmp_path).gelu(x, "tanh")
    assert share(answer, call, [x]) <= 1
    with pytest.raises(ValueError, match=r"takes torch.float32\[7, 129\], got torch.float32\[2, 129\]"):
        module_of("scheduled_function", draft.code, tmp_path).gelu(x[:2])


def test_a_problem_without_a_nest_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolution, "nest_of", lambda problem: derive_nest(lambda x: x.cumsum(0), [torch.randn(4)]))
    proposer = ScheduleRewriting()
    assert proposer.propose(PROBLEM, [], 4) == [] and proposer.declined == "aten::cumsum has no rule"
    sol = dataclasses.replace(PROBLEM, format="sol-execbench")
    assert proposer.propose(sol, [], 4) == [] and "of the format sol-execbench" in proposer.declined


def test_an_op_at_all_its_sizes_is_none_of_a_schedules() -> None:
    proposer = ScheduleRewriting(seed=5)
    all_of_them, one = (
        op_packages.problem_of("softmax"),
        op_packages.problem_of(f"softmax:{OPS['softmax'].contract.cases[0].name}"),
    )
    assert "all sizes of softmax; a schedule is for one" in proposer.unfit(all_of_them) and not proposer.unfit(one)
    assert all(shape.required for shape in all_of_them.shapes)
    assert [shape.required for shape in one.shapes[:3]] == [True, False, False]
