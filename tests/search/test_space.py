"""What a text declares of itself, and the text at another point."""

from __future__ import annotations

import pytest

from kernelworks.judge.problem import Misread
from kernelworks.search.space import space_in

TEXT = """
import torch

TILE = 8  # rows of a tile
FLAGS: str = "-O2"
SCALE, SHARED = 0.5, True
SPACE = {"TILE": [8, 16, 32], "FLAGS": ["-O2", "-O3 -é"]}


def run(x):
    TILE = 3
    return x * TILE
"""


def test_a_text_says_its_points() -> None:
    space = space_in(TEXT)
    assert space is not None
    assert space.choices == {"TILE": (8, 16, 32), "FLAGS": ("-O2", "-O3 -é")}
    assert space.at == {"TILE": 8, "FLAGS": "-O2"} and space.size == 6
    assert len(list(space.points())) == 6


def test_the_text_at_another_point_has_other_constants_alone() -> None:
    space = space_in(TEXT)
    assert space is not None
    there = space.text_at({"TILE": 32, "FLAGS": "-O3 -é"})
    assert there == TEXT.replace("TILE = 8 ", "TILE = 32 ").replace('str = "-O2"', "str = '-O3 -é'")
    again = space_in(there)
    assert again is not None and again.at == {"TILE": 32, "FLAGS": "-O3 -é"}
    assert again.family == space.family
    other = space_in(TEXT.replace("x * TILE", "TILE * x"))
    assert other is not None and other.family != space.family


def test_a_text_without_one_has_none() -> None:
    assert space_in("TILE = 8\n") is None
    assert space_in("this is no Python") is None


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("SPACE = [1, 2]", "a dictionary of lists"),
        ("SPACE = {}", "a dictionary of lists"),
        ("SPACE = made()", "no literal"),
        ('SPACE = {"A": 3}', "a list of numbers"),
        ('SPACE = {"A": []}', "a list of numbers"),
        ('SPACE = {"A": [None]}', "a list of numbers"),
        ('SPACE = {"A": [-1, 1]}', "0 and above"),
        ('SPACE = {"B": [1]}', "no constant of that name"),
        ('SPACE = {"C": [1]}', "no constant of that name"),
        ('SPACE = {"two words": [1]}', "names of constants"),
    ],
)
def test_what_is_no_space_is_said(stated: str, said: str) -> None:
    with pytest.raises(Misread, match=said):
        space_in(f"A = 1\nC = 1\nC = 2\n{stated}\n")
