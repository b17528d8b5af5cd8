"""Walls that a GPU's driver does not start behind are found, left out, and said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelworks.judge.process.driver_walls import WALLS, driver_starts_behind, walls_to_leave_out
from kernelworks.judge.process.sandbox import Isolation


@pytest.mark.parametrize("breaking", [set(), {"devices"}, {"users"}, {"others'", "users"}, {"files", "shared memory"}])
def test_no_more_walls_are_left_out_than_must_be(breaking: set[str]) -> None:
    asked: list[frozenset[str]] = []

    def starts(left_out: frozenset[str]) -> bool:
        asked.append(left_out)
        return breaking <= left_out

    assert walls_to_leave_out(starts) == breaking
    assert len(asked) == 1 if not breaking else len(asked) <= 2 + len(WALLS)


def test_a_driver_that_starts_behind_no_choice_costs_no_wall() -> None:
    assert walls_to_leave_out(lambda left_out: False) == frozenset()


def test_of_two_walls_that_break_it_together_the_stronger_stays() -> None:
    assert walls_to_leave_out(lambda left_out: bool(left_out & {"devices", "files"})) == {"devices"}


def test_a_wall_that_is_left_out_is_said_and_not_tried() -> None:
    apart, tried = Isolation({"devices", "others'"}), list[str]()
    for what in ("devices", "others' /tmp", "rights"):
        apart.attempt(what, lambda what=what: tried.append(what))  # type: ignore[misc]
    assert tried == ["rights"] == apart.kept
    assert apart.open == [f"{what}: a GPU's driver does not start behind it" for what in ("devices", "others' /tmp")]


def test_a_start_is_tried_behind_the_walls_themselves() -> None:
    """A stand-in that wants a file of its user's: it is there again once places of others and
    another user's number are left out."""
    own = Path.home() / f".kernelworks-test-{os.getpid()}"
    own.write_text("here", encoding="ascii")
    try:
        assert driver_starts_behind(frozenset(WALLS), own.exists)
        assert not driver_starts_behind(frozenset(), lambda: False)
        covered = driver_starts_behind(frozenset(), lambda: not own.exists())
        shown = driver_starts_behind(frozenset({"others'", "users"}), own.exists)
        assert shown or not covered  # without a namespace of files nothing is covered, and it is there in any case
    finally:
        own.unlink()


def test_what_a_start_raises_is_no_start() -> None:
    def start() -> bool:
        raise RuntimeError("planted")

    assert not driver_starts_behind(frozenset(WALLS), start)
