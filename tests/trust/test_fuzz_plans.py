"""Random programs with a plan in place do what they do without one, whatever happens to them meanwhile."""

from __future__ import annotations

import dataclasses
import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fuzz_plan_events as events
import fuzz_plan_judge
import kernelworks as kw
import pytest
import torch
from eligible import ROWS
from fuzz_plan_grammar import Builder, Program
from fuzz_plan_judge import faults, reduced
from fuzz_plan_models import HEADER
from torch import Tensor, nn

PROGRAMS, ALL_PROGRAMS, TOGETHER = 60, 2000, 100
EACH_INDUCTOR = 250  # of so many of a night one goes through torch's own compiler, which takes seconds
OFTEN = {"folded norms", "merged projections", "weights cast once", "torch.compile", "swap", "channels_last"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Programs have numbers. An ordinary run has the same ones each time; a night's begin anywhere (`--seed`), which the
    names of its tests say."""
    if "numbers" in metafunc.fixturenames:
        config = metafunc.config
        night = config.getoption("--all") or config.getoption("--seed") is not None
        first, whole = (_first(config), ALL_PROGRAMS) if night else (0, PROGRAMS)
        parts = [range(at, min(at + TOGETHER, first + whole)) for at in range(first, first + whole, TOGETHER)]
        metafunc.parametrize("numbers", parts, ids=lambda part: f"{part.start}-{part.stop - 1}")


def _first(config: pytest.Config) -> int:
    """The same for all workers of a run."""
    given: int | None = config.getoption("--seed")
    run = getattr(config, "workerinput", {}).get("testrunuid") or secrets.token_hex(4)
    return given if given is not None else int(run[:8], 16)


def program(number: int) -> tuple[Program, str | None]:
    """The program of this number, and the row of ours that alone runs in it, if one does."""
    choices = random.Random(number)
    row = choices.choice((None, None, "avx2", "avx512"))
    made = Builder(choices, inductor=number % EACH_INDUCTOR == EACH_INDUCTOR - 1).program()
    return made, row if row is None or row in ROWS else ROWS[-1]


@pytest.mark.timeout(3600)
def test_random_programs_do_the_same_with_a_plan(numbers: range, tmp_path: Path) -> None:
    found, placed = [], set[str]()  # of every program that differs: one of them does not hide the others
    for number in numbers:
        made, row = program(number)
        wrong, done = faults(made, tmp_path, row)
        placed.update(done)
        if wrong:
            least = reduced(made, tmp_path, row)
            found += [f"\nprogram {number}, row {row}:", str(least), "", *map(str, faults(least, tmp_path, row)[0])]
    assert not found, "\n".join(found)
    assert placed >= OFTEN or len(numbers) < PROGRAMS
