"""What an exercise's ``reference.py`` is written with.

    def cases() -> Iterator[Case]:      # small ones, each of which some wrong attempt fails
    def timed() -> Case:                # one that is worth a stopwatch, with its work
    def reference(**arguments):         # {"y": array}: each output in float64
    def bound(**arguments):             # {"y": array}: the largest error allowed, elementwise, derived
    MISTAKES: dict[str, function]       # sentence -> what somebody computes who makes this mistake, in float64
    def owners(**arguments):            # {"y": array}: the program that has to write each element, if it matters

``reference``, ``bound`` and the mistakes get the arguments by name: what is read as float64 arrays (integers as they
are), scalars as they are, no outputs. A ``State`` argument is handed over as it was before the call.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "HALF_ULP",
    "TINY",
    "Array",
    "Case",
    "Columns",
    "State",
    "Output",
    "Reference",
    "Rows",
    "load_reference",
    "random",
]

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

HALF_ULP = 2.0**-24  # the largest relative error of one rounding to float32
TINY = 2.0**-149  # the smallest float32 above 0: what a rounding below the normal range is off by


@dataclass(frozen=True)
class Output:
    """An array that the function is to fill. ``gap`` elements between its rows belong to nobody."""

    shape: tuple[int, ...] | int
    dtype: str = "float32"
    gap: int = 0


@dataclass(frozen=True)
class Rows:
    """A matrix that is read, with ``gap`` elements between its rows that belong to nobody."""

    array: Array
    gap: int


@dataclass(frozen=True)
class Columns:
    """A matrix that is read and lies column by column, ``gap`` elements between them: neighbours in a row are
    ``rows + gap`` elements apart. For a function that is told both strides."""

    array: Array
    gap: int = 0


@dataclass(frozen=True)
class State:
    """An array that is read and written: a state, weights that are stepped."""

    array: Array
    gap: int = 0


@dataclass(frozen=True)
class Case:
    """One call. ``about`` names it in a message. ``alone`` is what it means if only cases with this sentence fail.

    ``flop`` and ``bytes`` are the work that a call cannot do without; of what is timed.
    """

    about: str
    arguments: dict[str, Any]
    alone: str = ""
    flop: float = 0.0
    bytes: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether an array has no element, as where n or k is 0: such a case is told last."""
        arrays = [v.array if isinstance(v, (Rows, Columns, State)) else v for v in self.arguments.values()]
        shapes = [np.zeros(a.shape).size if isinstance(a, Output) else a.size for a in arrays if hasattr(a, "shape")]
        return 0 in shapes


def random(seed: int) -> np.random.Generator:
    """Numbers that are the same on every run."""
    return np.random.default_rng(seed)


@dataclass(frozen=True)
class Reference:
    """The functions of one ``reference.py``."""

    cases: Callable[[], Iterator[Case]]
    timed: Callable[[], Case]
    reference: Callable[..., Mapping[str, Array]]
    bound: Callable[..., Mapping[str, Array]]
    mistakes: dict[str, Callable[..., Mapping[str, Array]]]
    owners: Callable[..., Mapping[str, Array]] | None = None


def load_reference(folder: Path) -> Reference:
    """What an exercise's ``reference.py`` defines. Raises ValueError where a function is missing."""
    path = folder / "reference.py"
    found = runpy.run_path(str(path))
    lacking = [name for name in ("cases", "timed", "reference", "bound") if not callable(found.get(name))]
    if lacking:
        raise ValueError(f"{path} defines no {lacking[0]}()")
    return Reference(
        found["cases"], found["timed"], found["reference"], found["bound"], dict(found.get("MISTAKES", {})),
        found.get("owners"),
    )  # fmt: skip


def exact(value: Any) -> Any:
    """An argument as the reference gets it."""
    if isinstance(value, (Rows, Columns, State)):
        value = value.array
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(np.float64)
    return value


def exact_arguments(case: Case) -> dict[str, Any]:
    """All arguments but the outputs, as the reference gets them."""
    return {name: exact(value) for name, value in case.arguments.items() if not isinstance(value, Output)}
