"""Steps that are entries of a table, on a GPU: one launch for all tensors of a pair of dtypes (``lists.py``).

    @kernel
    def lion_element(w, g, c):
        ...
        return p, m

    lion_forward, lion_prepare = steps(__file__, lion_element, lists, written, {"rate": "lr", ...}, numbers)

An element's function takes the parameter with the states, the gradient and the numbers, and returns the parameter and
the states. A block with a value that could leave float32's range on the way is done in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton.language as tl

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.contract.derived_numbers import derived_numbers
from kernelworks.tile.lists import ListLaunch, block_of, elements

__all__ = ["quotient", "root", "steps"]

MOST_NUMBERS = 8
HUGE = tl.constexpr(1.152921504606847e18)  # 2^60


@kernel
def quotient(a, b):
    """Rounded: Triton's own of float32 may be two units in the last place off."""
    if a.dtype == tl.float64 or b.dtype == tl.float64:
        made = a / b
    else:
        made = tl.div_rn(a, b)
    return made


@kernel
def root(x):
    """Rounded."""
    if x.dtype == tl.float64:
        made = tl.sqrt(x)
    else:
        made = tl.sqrt_rn(x)
    return made


@kernel
def _stored(
    table, owner, T, at, inside, made, PARAM: tl.constexpr, STATE: tl.constexpr, WHOLE: tl.constexpr,
    STATES: tl.constexpr,
):  # fmt: skip
    tl.store(elements(table, owner, at, PARAM, WHOLE), made[0].to(tl.float32), mask=inside)
    for k in tl.static_range(1, STATES + 1):
        tl.store(elements(table, owner + k * T, at, STATE, WHOLE), made[k].to(tl.float32), mask=inside)


@kernel
def _forward(
    owners, firsts, sizes, table, T, c0, c1, c2, c3, c4, c5, c6, c7, PARAM: tl.constexpr, STATE: tl.constexpr,
    BLOCK: tl.constexpr, WHOLE: tl.constexpr, ELEMENT: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    owner, at, inside = block_of(owners, firsts, sizes, BLOCK, WHOLE)
    numbers = (c0, c1, c2, c3, c4, c5, c6, c7)
    p = tl.load(elements(table, owner, at, PARAM, WHOLE), mask=inside, other=0.0).to(tl.float32)
    g = tl.load(elements(table, owner + (1 + STATES) * T, at, PARAM, WHOLE), mask=inside, other=0.0).to(tl.float32)
    a = p
    b = p
    if STATES > 0:
        a = tl.load(elements(table, owner + T, at, STATE, WHOLE), mask=inside, other=0.0).to(tl.float32)
    if STATES > 1:
        b = tl.load(elements(table, owner + 2 * T, at, STATE, WHOLE), mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.maximum(tl.maximum(tl.abs(p), tl.abs(g)), tl.maximum(tl.abs(a), tl.abs(b))), 0)
    if largest > HUGE:
        wide = (p.to(tl.float64), a.to(tl.float64), b.to(tl.float64))
        _stored(table, owner, T, at, inside, ELEMENT(wide, g.to(tl.float64), numbers), PARAM, STATE, WHOLE, STATES)
    else:
        _stored(table, owner, T, at, inside, ELEMENT((p, a, b), g, numbers), PARAM, STATE, WHOLE, STATES)


FORWARD = Kernel(_forward)


class Step:
    """Steps over lists of tensors that look like these: the same dtypes, shapes and strides."""

    def __init__(self, made: Steps, args: Sequence[Any]) -> None:
        self.made = made
        self.order = [made.lists.index(name) for name in (*made.written, "grads")]
        lists = {made.lists[place]: args[place] for place in self.order}
        self.launch = ListLaunch(FORWARD, lists, len(made.written), made.configs)

    def __call__(self, *args: Any, out: Any = None) -> None:
        made = self.made
        given = dict(zip(made.numbers, args[len(made.lists) :], strict=False))
        numbers = tuple(derived_numbers(made.constants, given).values())
        own = (*numbers, *(0.0,) * (MOST_NUMBERS - len(numbers)))
        states = len(made.written) - 1
        lists = [args[place] for place in self.order]
        self.launch(lists, [own] * len(self.launch.groups), ELEMENT=made.element, STATES=states)


class Steps:
    """The launches of one optimizer. ``lists`` and ``numbers`` name its arguments in order, ``written`` the lists that
    are written, the parameters first. ``constants``, expressions of the numbers, are what a kernel takes."""

    def __init__(
        self, op_package: str, element: Any, lists: tuple[str, ...], written: tuple[str, ...],
        numbers: tuple[str, ...], constants: dict[str, str],
    ) -> None:  # fmt: skip
        self.configs, self.element, self.lists, self.written = configs(op_package), element, lists, written
        self.numbers, self.constants = numbers, constants

    def prepare(self, *args: Any) -> Step:
        return Step(self, args)

    def forward(self, *args: Any, out: Any = None) -> None:
        Step(self, args)(*args)


def steps(*of: Any) -> tuple[Callable[..., None], Callable[..., Step]]:
    """``forward`` and ``prepare`` of ``Steps``."""
    made = Steps(*of)
    return made.forward, made.prepare
