"""One kind for every tensor that an op takes: its dimensions by name, and what holds of their sizes.

    ARGUMENTS = {
        "q": T("B H Lq D", where=("1 <= D <= 256",)),
        "k": T("B Hkv Lk D", like="q", where=("divides(Hkv, H)",)),
        "v": T("B Hkv Lk D", like="k"),
        "sinks": T("H", like="q", optional=True),
    }

A name stands for one size in a whole call: who names it first says how large it is. ``...`` stands for any number of
dimensions, the same ones in a whole call; ``B|1`` for a dimension that may be 1 instead; a number for itself;
``L R or B|1 L R`` for either shape. From that follow the check and its words, the schema, calls that are right and
calls that must raise, what integers are indices of, and the sizes themselves (``sizes_of``, ``shape_of``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import FLOATS, describe, need_dtype, need_same, need_tensor

__all__ = ["REST", "GivenArguments", "T", "Wrong", "is_contiguous", "shape_of", "sizes_of", "strides_of"]

Wrong = tuple[str, Any, type[Exception], str]  # What is wrong with a value, the value, what it raises, with which words
Sizes = Mapping[str, Any]  # of each named dimension; of REST a tuple of them

REST = "rest"  # the name by which a condition asks for the sizes of ``...``
TRIES = (3, 8, 4, 2, 1, 5, 6, 16, 0, 7, 9, 257, 300)  # sizes that are tried for a tensor that is right, or wrong
OTHER_DTYPES = (torch.int64, torch.float64, torch.complex64, torch.int32, torch.float16, torch.float32)
USUAL, LAST = (2, 3, 4, 5, 6), 8  # sizes of the dimensions of a tensor that is right, and of its last one


class GivenArguments(dict[str, Any]):
    """The arguments of a call by name, and what the tensors among them that were looked at call their dimensions."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        super().__init__(given or {})
        self.sizes: dict[str, Any] = {}
        self.named_by: dict[str, str] = {}
        self.first = ""  # the first tensor: all are on its device

    @property
    def scalars(self) -> dict[str, Any]:
        """The arguments that are numbers, words or truths: conditions may ask for them, too."""
        return {name: value for name, value in self.items() if isinstance(value, (bool, int, float, str))}

    def name_sizes(self, sizes: Sizes, by: str) -> None:
        """Keeps sizes that the argument ``by`` is the first to name."""
        self.sizes.update(sizes)
        for dimension in sizes:
            self.named_by[dimension] = by

    def check_device(self, name: str, value: Any) -> None:
        """Raises ValueError unless a tensor is on the device of the call's first one."""
        if not self.first:
            self.first = name
            return
        other = self[self.first]
        if value.device != other.device and torch.device(value.device).type != torch.device(other.device).type:
            raise ValueError(f"{name} must be on {self.first}'s device {other.device}, got {value.device}")


def divides(part: int, whole: int) -> bool:
    """Whether so many parts are alike; of none, none."""
    return whole % part == 0 if part else whole == 0


class Condition:
    """What must hold of sizes, as an expression of their names. A function of them is made of it at once: a compiler of
    programs reads through that, and through no ``eval``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names = tuple(n for n in compile(text, f"<{text}>", "eval").co_names if n not in FUNCTIONS)
        self._function: Callable[..., bool] = eval(f"lambda {', '.join(self.names)}: {text}", globals())

    def holds(self, sizes: Sizes) -> bool:
        """Whether it does; True as long as a size that it asks for is not known."""
        return not all(name in sizes for name in self.names) or bool(self._function(*(sizes[n] for n in self.names)))


FUNCTIONS = frozenset({"min", "max", "len", "divides"})  # that a condition may call


@dataclass(frozen=True)
class Dimension:
    """One word of a shape. Its size is kept by the ``key``; ``number`` is the size that it always has."""

    name: str
    or_one: bool
    key: str
    number: int | None

    @property
    def is_rest(self) -> bool:
        return self.key == REST

    def text(self, sizes: Sizes) -> str:
        """The word, with its size if that is known."""
        size = sizes.get(self.key)
        if self.is_rest:
            return "..." if size is None else ", ".join(map(str, size))
        return f"{self.name}={size}" * (size is not None) + self.name * (size is None) + "|1" * self.or_one


def _dimension(word: str, shape: str) -> Dimension:
    found = re.fullmatch(r"(\.\.\.|\d+|[A-Za-z]\w*)(\|1)?", word)
    if found is None:
        raise ValueError(f"shape must be names, numbers, '...' and 'NAME|1', got {word!r} in {shape!r}")
    name = found[1]
    return Dimension(name, bool(found[2]), REST if name == "..." else name, int(name) if name.isdigit() else None)


class Shape:
    """One shape, read once: ``rest`` is the place of ``...``, -1 without it."""

    def __init__(self, text: str) -> None:
        self.dimensions = tuple(_dimension(word, text) for word in text.split())
        places = [i for i, dimension in enumerate(self.dimensions) if dimension.is_rest]
        if len(places) > 1:
            raise ValueError(f"shape must have one '...' at most, got {text!r}")
        self.rest = places[0] if places else -1
        self.sized = tuple(dimension for dimension in self.dimensions if not dimension.is_rest)

    def match(self, shape: Sequence[int], known: Sizes) -> dict[str, Any] | None:
        """The sizes that a tensor of this shape is the first to name; None if it does not fit those that are known.
        Every call of an op that is checked comes through here."""
        found: dict[str, Any] = {}
        if (at := self.rest) >= 0:
            end = len(shape) - (len(self.sized) - at)
            rest = shape[at:end]
            if end < at or known.get(REST, rest) != rest:
                return None
            if REST not in known:
                found[REST] = rest
            shape = (*shape[:at], *shape[end:]) if self.sized else ()
        elif len(shape) != len(self.sized):
            return None
        for dimension, size in zip(self.sized, shape, strict=True):
            if dimension.or_one and size == 1:
                continue  # says nothing of what it is elsewhere
            wanted = dimension.number
            if wanted is None and (wanted := known.get(dimension.name, found.get(dimension.name))) is None:
                found[dimension.name] = size
            elif wanted != size:
                return None
        return found


@dataclass(frozen=True)
class T:
    """A tensor of a ``shape`` (see above), any strides unless it is ``contiguous``.

    ``like`` names the argument whose dtype it has; without it one of ``dtypes``. With both, either will do. ``where``
    are conditions on sizes, Python expressions of their names (``rest`` for what ``...`` stands for) and of the call's
    numbers; one that asks for a size that another tensor names later is not looked at. ``index_of`` names the
    dimension that its integers are indices of. All tensors of a call are on one device.
    """

    shape: str = "..."
    like: str = ""
    dtypes: tuple[torch.dtype, ...] = ()
    optional: bool = False
    contiguous: bool = False
    where: tuple[str, ...] = ()
    index_of: str = ""
    _shapes: tuple[Shape, ...] = field(init=False, repr=False, compare=False)
    _conditions: tuple[Condition, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shapes", tuple(Shape(text) for text in self.shape.split(" or ")))
        object.__setattr__(self, "_conditions", tuple(Condition(text) for text in self.where))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Of its shape; of the first one if there are several."""
        return self._shapes[0].dimensions

    @property
    def schema(self) -> str:
        return "Tensor?" if self.optional else "Tensor"

    @property
    def accepted_dtypes(self) -> tuple[torch.dtype, ...]:
        """Without what ``like`` adds."""
        return self.dtypes or (() if self.like else FLOATS)

    # ------------------------------------------------------------ the check

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value, optional=self.optional)
        if value is None:
            return
        self._check_dtype(name, value, given)
        given.check_device(name, value)
        found = self._matched(tuple(value.shape), given.sizes)
        if found is None or (self._conditions and not self._holds({**given.scalars, **given.sizes, **found})):
            raise ValueError(f"{name} must have shape {self._expected(given)}; got {list(value.shape)}")
        given.name_sizes(found, name)
        if self.contiguous and not is_contiguous(value):
            raise ValueError(f"{name} must be contiguous, got strides {list(strides_of(value))} of {describe(value)}")

    def _check_dtype(self, name: str, value: Any, given: Mapping[str, Any]) -> None:
        if not self.like:
            need_dtype(name, value, self.accepted_dtypes)
        elif not self.dtypes:
            need_same(name, value, self.like, given[self.like])
        else:
            need_dtype(name, value, tuple(dict.fromkeys((given[self.like].dtype, *self.dtypes))))

    def _matched(self, shape: tuple[int, ...], known: Sizes) -> dict[str, Any] | None:
        """The sizes that a tensor of this shape is the first to name; None if it does not fit."""
        for one in self._shapes:
            if (found := one.match(shape, known)) is not None:
                return found
        return None

    def _holds(self, sizes: Sizes) -> bool:
        return all(condition.holds(sizes) for condition in self._conditions)

    def _expected(self, given: GivenArguments) -> str:
        """The shape that is wanted, with the sizes that are known and who named them."""
        known: dict[str, list[str]] = {}
        named = dict.fromkeys(dimension for one in self._shapes for dimension in one.dimensions)
        for dimension in named:
            if dimension.key in given.sizes:
                word = "the other sizes" if dimension.is_rest and len(named) > 1 else dimension.name
                known.setdefault(given.named_by[dimension.key], []).append("its sizes" if word == "..." else word)
        shapes = (filter(None, (d.text(given.sizes) for d in one.dimensions)) for one in self._shapes)
        text = " or ".join(f"[{', '.join(shape)}]" for shape in shapes)
        text += "".join(f", {' and '.join(names)} as in {name}" for name, names in known.items())
        if self.where:
            own = {dimension.key for dimension in named}
            known_sizes = {**given.scalars, **given.sizes}
            asked = {name for condition in self._conditions for name in condition.names} & known_sizes.keys() - own
            values = "".join(f", {n} = {known_sizes[n]}" for n in sorted(asked))
            text += f", with {' and '.join(self.where)}{values}"
        return text

    # ------------------------------------------------------------ right and wrong values

    def right(self, given: GivenArguments) -> Any:
        """A tensor that is accepted; None if it may be."""
        return self._drawn(given.sizes, given) if not self.optional else None

    def _drawn(self, known: Sizes, given: GivenArguments, broken: str = "") -> Tensor | None:
        """A tensor of this shape in which every condition holds, or all but ``broken``."""
        named = [d.name for d in self.dimensions if not d.is_rest and d.number is None and d.name not in known]
        free = list(dict.fromkeys(named))
        rest = tuple(known.get(REST, (USUAL[0], LAST) if len(self.dimensions) == 1 else USUAL[:1]))
        usual = [USUAL[(1 + len(known) + i) % len(USUAL)] for i in range(len(free))]  # no two alike
        if free and free[-1] == self.dimensions[-1].name and len(self.dimensions) > 1:
            usual[-1] = LAST
        asked = {name for condition in self._conditions for name in condition.names}
        tries = [(first, *(n for n in TRIES if n != first)) for first in usual]
        wanted = {d: n if d in asked else n[:1] for d, n in zip(free, tries, strict=True)}
        trial = self._fitting({**given.scalars, **known, REST: rest}, wanted, broken)
        if trial is None:
            return None
        return torch.ones(shape_of(self.shape.split(" or ")[0], trial), dtype=self._dtype(given))

    def _fitting(self, known: Sizes, wanted: Mapping[str, Sequence[int]], broken: str) -> dict[str, Any] | None:
        """The first of the sizes that are ``wanted`` by name for which every condition holds, or all but ``broken``.

        A condition is asked as soon as all sizes that it names are there: a search through the products of all sizes of
        a convolution takes five seconds.
        """
        free = tuple(wanted)
        turns: list[list[Condition]] = [[] for _ in range(len(free) + 1)]
        for condition in self._conditions:
            turns[max((1 + free.index(name) for name in condition.names if name in wanted), default=0)].append(
                condition
            )

        def search(turn: int, trial: dict[str, Any]) -> dict[str, Any] | None:
            if any(c.holds(trial) == (c.text == broken) for c in turns[turn]):
                return None
            if turn == len(free):
                return trial
            found = (search(turn + 1, {**trial, free[turn]: size}) for size in wanted[free[turn]])
            return next((each for each in found if each is not None), None)

        return search(0, dict(known))

    def _dtype(self, given: Mapping[str, Any]) -> torch.dtype:
        return given[self.like].dtype if self.like else self.accepted_dtypes[0]

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        """Values that are refused, for each of what is promised."""
        known = {n: size for n, size in given.sizes.items() if given.named_by[n] != name}  # by others
        right = self._drawn(known, given)
        assert right is not None, f"no tensor is {self}"
        tensor, shape = f"{name} must be a torch.Tensor", f"{name} must have shape"
        yield f"{name} is a number", 1.0, TypeError, tensor
        if not self.optional:
            yield f"{name} is None", None, TypeError, tensor
        text = f"{name} must have " + (f"{self.like}'s dtype" if self.like and not self.dtypes else "dtype")
        for dtype in OTHER_DTYPES:
            if dtype not in self.accepted_dtypes and dtype != right.dtype:
                other = torch.ones(right.shape, dtype=dtype)
                yield f"{name} of {str(dtype).removeprefix('torch.')}", other, TypeError, text
        for what, other in self._other_shapes(right, known):
            if self._matched(other.shape, known) is None:  # else it is one of several that are right
                yield f"{name} {what}", other, ValueError, shape
        for text in self.where:
            broken = self._drawn(known, given, text)
            if broken is not None:
                yield f"{name} without {text}", broken, ValueError, shape
        if self.contiguous and right.dim() and right.numel() > 1:
            longer = right.new_ones(*right.shape[:-1], 2 * right.shape[-1])
            apart = longer[..., ::2] if right.dim() == 1 else longer[..., : right.shape[-1]]
            yield f"{name} with elements between its rows", apart, ValueError, f"{name} must be contiguous, got strides"

    def _other_shapes(self, right: Tensor, known: Sizes) -> Iterator[tuple[str, Tensor]]:
        """A dimension more and less, and another size of each that is known already, or is a number."""
        yield "of a dimension more", right[None]
        least = len(self.dimensions) - any(d.is_rest for d in self.dimensions)
        if least:
            yield "of too few dimensions", right.new_ones(right.shape[right.dim() - least + 1 :])
        words: list[str] = []
        for dimension in self.dimensions:
            among_rest = right.dim() - len(self.dimensions) + 1
            words += [REST] * among_rest if dimension.is_rest else [dimension.name]
        for i, word in enumerate(words):
            if word in known or word.isdigit():
                longer = right.new_ones(*right.shape[:i], right.shape[i] + 2, *right.shape[i + 1 :])
                yield f"of another size of dimension {i}", longer

    # ------------------------------------------------------------ what else follows

    def __str__(self) -> str:
        shape = " or ".join(f"[{', '.join(d.text({}) for d in one.dimensions)}]" for one in self._shapes)
        shape = "any shape" if self.shape == "..." else shape
        dtypes = ", ".join(str(d).removeprefix("torch.") for d in self.accepted_dtypes)
        dtype = f"{self.like}'s dtype" + f" or {dtypes}" * bool(dtypes) if self.like else dtypes
        where = f", with {' and '.join(self.where)}" if self.where else ""
        index = f", indices below {self.index_of}" if self.index_of else ""
        strides = "contiguous" if self.contiguous else "any strides"
        return f"{shape} of {dtype}{where}{index}, {strides}" + ", or None" * self.optional


def sizes_of(arguments: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """The size of every dimension that the tensors of an accepted call name; of ``...`` the tuple ``rest``."""
    sizes: dict[str, Any] = {}
    for name, argument in arguments.items():
        if isinstance(argument, T) and args.get(name) is not None:
            sizes |= argument._matched(tuple(args[name].shape), sizes) or {}
    return sizes


def shape_of(shape: str, sizes: Sizes) -> tuple[int, ...]:
    """The sizes of a tensor of such a shape, of those of its dimensions."""
    found: list[int] = []
    for dimension in Shape(shape).dimensions:
        if dimension.is_rest:
            found += sizes[REST]
        else:
            found.append(dimension.number if dimension.number is not None else sizes[dimension.name])
    return tuple(found)


def strides_of(value: Any) -> tuple[int, ...]:
    """Of a tensor, or of what stands for one."""
    return tuple(value.stride()) if isinstance(value, Tensor) else value.stride


def is_contiguous(value: Any) -> bool:
    """Whether a tensor, or what stands for one, lies in its memory without gaps, in order."""
    if isinstance(value, Tensor):
        return value.is_contiguous()
    dense = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride), strict=True):
        if size > 1 and stride != dense and value.numel:
            return False
        dense *= size
    return True
