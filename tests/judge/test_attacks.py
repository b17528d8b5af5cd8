"""Every attack is refused for what it does, and its honest twin, which looks much like it, is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacked import PROBLEMS
from attacks import ATTACKS, Attack

from kernelworks.judge import Budget, judge_all
from kernelworks.judge.formats import kernelbench
from kernelworks.judge.nursery import Nursery
from kernelworks.records import Ceilings
from kernelworks.verdicts import Judgement

# Enough calls for each attack to show: what a candidate takes here is its calls.
BUDGET = Budget(truth_s=1.0, most_cases=6, many=140, many_s=2.0, answer_s=10.0, looks=1, shapes=0)
Judged = dict[str, tuple[Judgement, Judgement]]
FIRST = {a.family: a for a in reversed(ATTACKS)}  # of each family, where there is no time for all


def _tried(config: pytest.Config) -> list[Attack]:
    return [a for a in ATTACKS if config.getoption("--all") or a in FIRST.values()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "attack" in metafunc.fixturenames:
        metafunc.parametrize("attack", _tried(metafunc.config), ids=lambda attack: attack.name)


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest, ceilings: Ceilings) -> Judged:
    """Those of one problem in one set of processes."""
    with Nursery(interpreted=True) as nursery:
        return _judged(request.config, ceilings, nursery)


def _judged(config: pytest.Config, ceilings: Ceilings, nursery: Nursery) -> Judged:
    found: Judged = {}
    for name, text in PROBLEMS.items():
        problem = kernelbench.problem_in(Path(f"{name}.py"), text)
        some = [a for a in _tried(config) if a.problem == name]
        candidates = [
            kernelbench.candidate_in(Path(f"{kind}.py"), source)
            for a in some
            for kind, source in (("attack", a.text), ("twin", a.honest))
        ]
        records = judge_all(candidates, problem, ceilings=ceilings, budget=BUDGET, threads=1, nursery=nursery)
        found |= {a.name: pair for a, pair in zip(some, zip(records[::2], records[1::2], strict=True), strict=True)}
    return found


def test_the_attack_is_refused_and_its_twin_is_right(attack: Attack, judged: Judged) -> None:
    refused, right = judged[attack.name]
    assert right.verdict == attack.twin_verdict, right.reasons
    if attack.needs and any(line.startswith(f"{attack.needs}:") for line in refused.open_to):
        return  # the kernel of this machine does not keep anything from it, and the judgement says so
    assert refused.verdict == attack.verdict, refused
    assert attack.kind in {reason.kind for reason in refused.reasons}, refused.reasons


def test_every_attack_has_a_name_of_its_own() -> None:
    assert len({a.name for a in ATTACKS}) == len(ATTACKS) >= 45
