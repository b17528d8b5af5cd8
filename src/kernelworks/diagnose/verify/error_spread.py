"""How large an error of 16 bits may be by chance, where one draw of it says little of the next.

The roundings of a model move an answer along few directions (a bias of eight channels, a gate that all pixels share) or
along many. The square of the error's norm is then distributed as a sum of so many squares of normal numbers: a
chi-squared distribution, whose degrees of freedom a few draws show by how far they lie apart. Quantiles are those of
Wilson and Hilferty (1931), for a quotient of two such numbers of Paulson (1942): within 5% from four degrees on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["largest_by_chance", "root_mean_square"]

# Of a normal distribution: one error in 30,000 lies above. Of a model some hundred answers are compared, a few times.
STDDEVS = 4.0
SHARE_SHOWN = 0.5  # of the degrees of freedom that eight draws show: they show it within a factor of about two


def root_mean_square(norms: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(norm * norm for norm in norms))


def _freedom(norms: Sequence[float], elements: int) -> float:
    """Degrees of freedom of an error whose draws have these norms, at least two of them."""
    squares = [norm * norm for norm in norms]
    variance = statistics.variance(squares)
    return min(2 * statistics.fmean(squares) ** 2 / variance, elements) if variance else elements


def largest_by_chance(norms: Sequence[float], elements: int, was: float = 0.0, usual: float = 1.0) -> float:
    """The norm that one error in 30,000 exceeds, of an answer of so many ``elements``: errors are ``usual`` times those
    of draws with these ``norms`` (none moves what autocast rounds within an op, or what is written in place), and if
    one is known that ``was`` there, no larger than such a quotient allows."""
    spread = 2 / (9 * SHARE_SHOWN * _freedom(norms, elements))
    carried = usual * root_mean_square(norms) * math.pow(1 - spread + STDDEVS * math.sqrt(spread), 1.5)
    return min(carried, was * _largest_quotient(norms, elements)) if was else carried


def _largest_quotient(norms: Sequence[float], elements: int) -> float:
    """What the quotient of two such errors exceeds once in 30,000. No bound, infinity, below four degrees of
    freedom."""
    spread = 2 / (9 * _freedom(norms, elements))
    mean = (1 - spread) ** 2
    rest = mean - STDDEVS * STDDEVS * spread
    return math.pow((mean + math.sqrt(mean * mean - rest * rest)) / rest, 1.5) if rest > 0 else math.inf
