"""Every exercise: the starting file is refused, the solution accepted, each wrong attempt refused with its sentence."""

from __future__ import annotations

import pytest

from kernelworks.climb.ladder_folders import folders
from kernelworks.learn.checking import CHECKERS, check_attempts
from kernelworks.learn.exercise import Exercise, exercises
from kernelworks.ops import NAMES

EXERCISES = exercises()
IN_CPP = [exercise for exercise in EXERCISES.values() if exercise.language == "cpp"]
LEAST_WRONG = 4


@pytest.mark.parametrize("exercise", IN_CPP, ids=lambda exercise: exercise.name)
def test_the_check_is_right_about_every_file(exercise: Exercise) -> None:
    files = [exercise.start_path, exercise.solution_path]
    texts = [*(path.read_text(encoding="utf-8") for path in files), *(wrong.text for wrong in exercise.wrong)]
    start, solution, *attempts = check_attempts(exercise, texts)
    assert solution.right, (solution.sentence, solution.detail)
    assert not start.right
    said = {wrong.name: verdict.sentence for wrong, verdict in zip(exercise.wrong, attempts, strict=True)}
    due = {wrong.name: wrong.said for wrong in exercise.wrong}
    assert {name: due[name] if due[name] in sentence else sentence for name, sentence in said.items()} == due


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=lambda exercise: exercise.name)
def test_an_exercise_has_all_that_a_learner_is_given(exercise: Exercise) -> None:
    assert exercise.language in CHECKERS
    assert len(exercise.wrong) >= LEAST_WRONG
    assert len({wrong.name for wrong in exercise.wrong}) == len(exercise.wrong)
    assert len(exercise.hints) >= 2 and exercise.faster and exercise.symbol
    assert exercise.text.startswith(f"# {exercise.name}: ") and "**Contract.**" in exercise.text
    assert exercise.ladder in ("", *folders()) and exercise.op in ("", *NAMES)


def test_the_first_eight_say_the_language_that_they_need() -> None:
    first = IN_CPP[:8]
    assert all("## The C++ you need here" in exercise.text for exercise in first)
    in_triton = [exercise for exercise in EXERCISES.values() if exercise.language == "triton"]
    assert all("## The Triton you need here" in exercise.text for exercise in in_triton)


def test_the_order_is_without_doubt() -> None:
    assert len({exercise.order for exercise in EXERCISES.values()}) == len(EXERCISES)
