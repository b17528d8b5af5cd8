"""The count of flakes: what is not told as it must be in one of many rounds."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from kernelworks.learn.exercise import Exercise, exercise_named
from kernelworks.learn.faults import Verdict

TOOL = Path(__file__).resolve().parents[2] / "tools/learn_flakes.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("learn_flakes", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_check_that_changes_its_mind_is_counted(tool: ModuleType) -> None:
    exercise, rounds = exercise_named("affine"), iter(range(3))

    def checker(exercise: Exercise, texts: Sequence[str]) -> list[Verdict]:
        number = next(rounds)
        attempts = [Verdict(False, f"so: {wrong.said}") for wrong in exercise.wrong]
        if number == 1:
            attempts[0] = dataclasses.replace(attempts[0], sentence="something else")
            attempts[1] = Verdict(True)
        return [Verdict(number == 2), Verdict(number != 2, "no"), *attempts]

    said: list[str] = []
    assert tool.count_flakes(3, [exercise], said.append, {"cpp": checker}) == 4
    assert said[0].startswith("round 1 of 3: ") and said[0].endswith(", 0 flakes so far")
    assert said[1:3] == [
        f"round 2: affine, {exercise.wrong[0].name}: something else",
        f"round 2: affine, {exercise.wrong[1].name}: it is accepted",
    ]
    assert said[4:6] == [
        "round 3: affine: the starting file is accepted", "round 3: affine: the solution is refused: no",
    ]  # fmt: skip
