"""What an error of 16 bits may be by chance, held against errors of known degrees of freedom."""

from __future__ import annotations

import math
import random

import pytest

from kernelworks.diagnose.verify.error_spread import largest_by_chance, root_mean_square

DRAWS, TRIALS = 8, 3000


def norm(chance: random.Random, freedom: int) -> float:
    """Of an error that so many independent roundings make."""
    return math.sqrt(sum(chance.gauss(0.0, 1.0) ** 2 for _ in range(freedom)))


@pytest.mark.parametrize("freedom", [1, 4, 16, 100])
def test_an_error_of_another_kernel_is_within_what_chance_allows(freedom: int) -> None:
    chance, beyond = random.Random(freedom), 0
    for _ in range(TRIALS):
        draws = [norm(chance, freedom) for _ in range(DRAWS)]
        was, now = norm(chance, freedom), norm(chance, freedom)
        # as a verification asks: a larger error than the original's, and than what 16 bits are allowed in any case
        beyond += now > 1.1 * max(was, largest_by_chance(draws, freedom, was))
    assert beyond <= 1


@pytest.mark.parametrize(("freedom", "times"), [(16, 2.6), (100, 1.7), (1000, 1.3)])
def test_of_many_independent_roundings_it_allows_little_more_than_usual(freedom: int, times: float) -> None:
    chance = random.Random(freedom)
    for _ in range(20):
        draws = [norm(chance, freedom) for _ in range(DRAWS)]
        assert largest_by_chance(draws, freedom) <= times * math.sqrt(freedom)
        assert largest_by_chance(draws, freedom) > root_mean_square(draws)


def test_draws_that_overstate_an_error_do_not_hide_one_six_times_as_large() -> None:
    """The original's own error counts, where many roundings made it."""
    chance = random.Random(0)
    draws = [3 * norm(chance, 100) for _ in range(DRAWS)]
    assert largest_by_chance(draws, 100) > 3 * 10
    assert largest_by_chance(draws, 100, was=10.0) < 2 * 10


def test_errors_that_are_usually_larger_than_the_draws_are_allowed_as_much() -> None:
    chance = random.Random(0)
    draws = [norm(chance, 16) for _ in range(DRAWS)]
    assert largest_by_chance(draws, 16, usual=1.5) == pytest.approx(1.5 * largest_by_chance(draws, 16))


def test_draws_that_are_all_equal_allow_what_so_many_elements_do() -> None:
    assert 1.0 < largest_by_chance([1.0] * DRAWS, 10_000) < 1.1
    assert largest_by_chance([0.0] * DRAWS, 10_000) == 0.0
