"""Every attack is refused for what it does, and its honest twin, which looks much like it, is right."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack_table import PAGE, PART, page
from attacked import PROBLEMS, problem_in
from attacks import ATTACKS, Attack

from kernelworks.judge import Budget
from kernelworks.judge.formats import read_candidate
from kernelworks.judge.process.pool import Nursery
from kernelworks.judge.session import Sitting
from kernelworks.records import Peaks
from kernelworks.records.judgement import Judgement

# What a candidate takes here is its calls; no limit is one that a busy machine comes near.
BUDGET = Budget(
    reference_s=1.0,
    most_cases=6,
    many_s=60.0,
    answer_s=30.0,
    build_s=120.0,
    looks=1,
    samples=0,
    shapes=0,
    special=False,
)
LONG = dataclasses.replace(BUDGET, gradients=0)
DRAWN = dataclasses.replace(BUDGET, most_cases=12, least_cases=12)  # values far from those that are given, too
# As many as a judgement has where its reference is quick: a far element in the very row that an attack looks at leaves
# the attack right, so one draw of them misses it once in thirty.
OFTEN = dataclasses.replace(BUDGET, most_cases=48, least_cases=48)
SPECIAL = dataclasses.replace(BUDGET, special=True)
BUDGETS = {"long": LONG, "batch": DRAWN, "shares": OFTEN, "range": DRAWN, "special": SPECIAL}
FIRST = {a.family: a for a in reversed(ATTACKS)}  # of each family, where there is no time for all


def _tried(config: pytest.Config) -> list[Attack]:
    """Those of one problem after each other: its reference is there then."""
    some = [a for a in ATTACKS if config.getoption("--all") or a in FIRST.values()]
    return sorted(some, key=lambda a: [*PROBLEMS].index(a.problem))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "attack" in metafunc.fixturenames:
        metafunc.parametrize("attack", _tried(metafunc.config), ids=lambda attack: attack.name)


class Court:
    """Attacks and twins before the problems that they are for, in one set of processes."""

    def __init__(self, nursery: Nursery, ceilings: Peaks, folder: Path, stack: contextlib.ExitStack) -> None:
        self.nursery, self.folder, self.stack = nursery, folder, stack
        # A machine that reads at a fourth of the speed: far from what a twin takes, as it is from what an attack does.
        slow = tuple(dataclasses.replace(b, gbs=b.gbs / 4) for b in ceilings.bandwidth)
        self.peaks = dataclasses.replace(ceilings, bandwidth=slow)
        self.sittings: dict[str, Sitting] = {}

    def judgement(self, attack: Attack, text: str) -> Judgement:
        name = attack.problem
        if name not in self.sittings:
            sitting = Sitting(
                problem_in(self.folder, name), peaks=self.peaks, threads=1, nursery=self.nursery,
                budget=BUDGETS.get(name, BUDGET),
            )  # fmt: skip
            self.sittings[name] = self.stack.enter_context(sitting)
        sitting = self.sittings[name]
        sitting.bench.budget = dataclasses.replace(sitting.bench.budget, many=attack.calls)
        path = self.folder / "candidate.py"
        path.write_text(text, encoding="utf-8")
        return sitting.judge(read_candidate(path, sitting.problem))


@pytest.fixture(scope="module")
def court(ceilings: Peaks, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    with contextlib.ExitStack() as stack:
        yield Court(nursery, ceilings, tmp_path_factory.mktemp("attacked"), stack)


def test_the_attack_is_refused_and_its_twin_is_right(attack: Attack, court: Court) -> None:
    right = court.judgement(attack, attack.honest)
    assert right.verdict == attack.twin_verdict, right.reasons
    refused = court.judgement(attack, attack.text)
    if attack.needs and any(line.startswith(f"{attack.needs}:") for line in refused.open_to):
        return  # the kernel of this machine does not keep anything from it, and the judgement says so
    assert refused.verdict == attack.verdict, refused
    said = refused.remarks if attack.verdict == "right" else refused.reasons
    assert attack.kind in {charge.kind for charge in said}, said
    assert attack.verdict != "right" or attack.kind not in {charge.kind for charge in right.remarks}, right.remarks


def test_every_attack_has_a_name_of_its_own() -> None:
    assert len({a.name for a in ATTACKS}) == len(ATTACKS) >= 45


def test_the_table_of_the_page_is_this_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert PART.search(text) and page(text) == text, "docs/reference/attacks.md is out of date: make docs"
