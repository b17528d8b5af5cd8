"""Attacks that need a GPU, and their honest twins; where there is none they get no verdict."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacked import Attack, candidate, problem_in
from attacks import ATTACKS
from attacks_on_cuda import HONEST_ON_CUDA, ON_CUDA

from kernelworks.judge import Budget
from kernelworks.judge.formats import read_candidate
from kernelworks.judge.process.pool import Nursery
from kernelworks.judge.session import Sitting
from kernelworks.machine import has_gpu
from kernelworks.records.judgement import Judgement

BUDGET = Budget(reference_s=2.0, most_cases=13, many=60, many_s=60.0, looks=1, shapes=0, gradients=0)


class Court:
    """One sitting a problem, in one set of processes."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, budget: Budget = BUDGET) -> None:
        self.folder, self.stack, self.budget = folder, stack, budget
        self.nursery = stack.enter_context(Nursery()) if has_gpu() else None
        self.sittings: dict[str, Sitting] = {}

    def judgement(self, problem: str, text: str) -> Judgement:
        if problem not in self.sittings:
            asked = dataclasses.replace(problem_in(self.folder, problem), device="cuda")
            made = Sitting(asked, nursery=self.nursery, budget=self.budget)
            self.sittings[problem] = self.stack.enter_context(made)
        path = self.folder / "candidate.py"
        path.write_text(text, encoding="utf-8")
        return self.sittings[problem].judge(read_candidate(path, self.sittings[problem].problem))


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    with contextlib.ExitStack() as stack:
        yield Court(tmp_path_factory.mktemp("on_cuda"), stack)


@pytest.mark.parametrize("attack", ON_CUDA, ids=lambda attack: attack.name)
def test_the_attack_on_a_gpu_is_refused_and_its_twin_is_right(attack: Attack, court: Court) -> None:
    right, refused = (court.judgement(attack.problem, text) for text in (attack.honest, attack.text))
    if has_gpu():
        assert right.verdict == "right", right.reasons
        assert refused.verdict == "refused" and attack.kind in {r.kind for r in refused.reasons}, refused.reasons
    else:
        assert {right.verdict, refused.verdict} == {"undecided"} and "sees none here" in refused.reasons[0].said


@pytest.mark.parametrize("name", HONEST_ON_CUDA)
def test_an_honest_candidate_on_a_gpu_is_right(name: str, court: Court) -> None:
    problem, body, top = HONEST_ON_CUDA[name]
    found = court.judgement(problem, candidate(problem, body, top=top))
    assert found.verdict == ("right" if has_gpu() else "undecided"), found.reasons
    assert found.device == "cuda"
    if has_gpu():
        assert found.paces and found.events_s and bool(found.kernels) == bool(top)


def test_attacks_on_a_gpu_have_names_of_their_own_and_can_be_read(tmp_path: Path) -> None:
    assert not {a.name for a in ON_CUDA} & {a.name for a in ATTACKS} and len({a.name for a in ON_CUDA}) == len(ON_CUDA)
    for attack in ON_CUDA:
        problem = problem_in(tmp_path, attack.problem)
        for text in (attack.text, attack.honest):
            (tmp_path / "candidate.py").write_text(text, encoding="utf-8")
            assert read_candidate(tmp_path / "candidate.py", problem).entry == "ModelNew"
    for problem_name, body, top in HONEST_ON_CUDA.values():
        compile(candidate(problem_name, body, top=top), "candidate.py", "exec")
