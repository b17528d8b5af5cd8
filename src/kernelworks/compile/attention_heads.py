"""The tensors of an attention that a program writes out, as an op takes them: [B, H, L, D], of few heads if they were
few before they were repeated.

A product says by its dimensions which of them are of the batch, of the queries, of the keys and of a head; what was
viewed, repeated, scaled or widened ahead of it is taken back, as far as trying it on drawn numbers says that it may be.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import Steps, TensorView, apply_steps, name_of, value_of
from kernelworks.compile.constants import number
from kernelworks.compile.small_eval import CASTS, RESHAPES, run_nodes

__all__ = ["Operand", "Product", "Sizes", "ahead_of", "operand", "product", "result_steps"]

PRODUCTS = frozenset({"matmul", "bmm", "mm", "__matmul__"})
VIEW_OPS = RESHAPES | {"unsqueeze", "squeeze", "transpose", "permute", "swapaxes", "contiguous", "clone",
                     "repeat_interleave", "getitem"}  # fmt: skip
SCALES = {"mul": 1, "__mul__": 1, "__rmul__": 1, "truediv": -1, "div": -1, "__truediv__": -1}
MOST = 12  # At most so many nodes ahead of a product are read.
ORDERS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1), (0, 3, 1, 2), (0, 3, 2, 1))
CLOSE = 2.0**-40  # products of powers: a scale of sqrt(sqrt(D)) on either side
MOST_ELEMENTS = 1 << 25  # A tensor is tried with at most so many elements.


# ---------------------------------------------------------------- products


@dataclass(frozen=True)
class Product:
    """A product of two tensors, a letter for each dimension: of the left, of the right, of the result. ``plus`` is
    added to it, times ``beta``."""

    node: fx.Node
    left: fx.Node
    right: fx.Node
    letters: tuple[str, str, str]
    alpha: float = 1.0
    plus: fx.Node | None = None
    beta: float = 1.0
    unread: fx.Node | None = None  # what would be added, if it were not times zero

    @property
    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for letters, node in ((self.letters[0], self.left), (self.letters[1], self.right)):
            for letter, size in zip(letters, value_of(node).shape, strict=True):
                found[letter] = max(found.get(letter, 1), int(size))
        return found


def product(node: fx.Node) -> Product | None:
    """The product that a node is; None if it is none."""
    name, given = name_of(node), _args(node)
    if name == "einsum":
        return _of_equation(node)
    if name == "baddbmm" and set(node.kwargs) <= {"input", "batch1", "batch2", "alpha", "beta"}:
        named: dict[str, Any] = dict(zip(("input", "batch1", "batch2"), given, strict=False)) | node.kwargs
        tensors: list[Any] = [named.get(n) for n in ("input", "batch1", "batch2")]
        plus, left, right = tensors
        alpha, beta = (number(node.kwargs.get(n, 1.0)) for n in ("alpha", "beta"))
        if alpha is None or beta is None or not (_dims(left) == _dims(right) == 3) or not isinstance(plus, fx.Node):
            return None
        return Product(node, left, right, ("Amk", "Akn", "Amn"), alpha, plus if beta else None, beta, plus)
    if name not in PRODUCTS or len(given) != 2 or node.kwargs:
        return None
    left, right = given
    if min(_dims(left), _dims(right)) < 2:
        return None
    batch = string.ascii_uppercase[: max(_dims(left), _dims(right)) - 2]
    of = [batch[len(batch) - (_dims(n) - 2) :] for n in (left, right)]
    return Product(node, left, right, (of[0] + "mk", of[1] + "kn", batch + "mn"))


def _args(node: fx.Node) -> tuple[Any, ...]:
    return node.args


def _source(node: fx.Node) -> fx.Node:
    """The tensor that a node scales or views."""
    first, *rest = _args(node)
    found: fx.Node = first if isinstance(first, fx.Node) else rest[0]
    return found


def _dims(node: Any) -> int:
    value = value_of(node)
    return value.dim() if isinstance(value, Tensor) else 0


def _of_equation(node: fx.Node) -> Product | None:
    equation, *given = _args(node)
    given = list(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    if not isinstance(equation, str) or len(given) != 2 or node.kwargs:
        return None
    takes, arrow, makes = equation.replace(" ", "").partition("->")
    letters = [*takes.split(","), makes]
    if (
        not arrow
        or len(letters) != 3
        or any(set(word.replace("...", "")) & set(string.ascii_uppercase) for word in letters)
    ):
        return None
    more = [_dims(n) - len(w.replace("...", "")) if "..." in w else 0 for n, w in zip(given, letters, strict=False)]
    batch = string.ascii_uppercase[: max(more)]
    dots = [batch[len(batch) - n :] for n in (*more, len(batch))]
    left, right, made = (w.replace("...", d) for w, d in zip(letters, dots, strict=True))
    found = Product(node, given[0], given[1], (left, right, made))
    whole = all(len(set(w)) == len(w) for w in (left, right, made)) and set(made) <= set(left) | set(right)
    return found if whole and len(left) == _dims(given[0]) and len(right) == _dims(given[1]) else None


# ---------------------------------------------------------------- operands


@dataclass(frozen=True)
class Sizes:
    """Of the scores' batch: the sizes of its dimensions in a product, and what they are in [B, H, Lq, Lk]."""

    batch: tuple[int, ...]
    B: int
    H: int


@dataclass(frozen=True)
class Operand:
    """An argument of the op's: a view of a node, what that is times, and the nodes between it and the product.
    ``small`` is the node's shape in a trial."""

    viewed: TensorView
    scale: float
    passed: tuple[fx.Node, ...]
    small: tuple[int, ...]


def operand(
    node: fx.Node, letters: str, batch: str, row: str, column: str, sizes: Sizes, dtype: torch.dtype, *,
    length: int, cast: bool,
) -> Operand | None:  # fmt: skip
    """A product's operand whose dimensions are ``letters``, as [B, heads, row, column]; None if it is none that an
    op takes. ``length`` is how many rows a trial has, ``cast`` says that the op's arguments are cast to ``dtype``."""
    value = value_of(node)
    own = dict(zip(letters, value.shape, strict=True))
    steps = _steps(own, letters, batch, row, column, sizes)
    if steps is None or not value.dtype.is_floating_point:
        return None
    small = tuple(length if letter == row else int(own[letter]) for letter in letters)
    rows, columns = int(own[row]), int(own[column])
    found = None
    if cast or value.dtype == dtype:
        found = Operand(TensorView(node, steps), 1.0, (), small)
    passed: list[fx.Node] = []
    scale, saved = 1.0, found is None
    for before, factor in _ahead(node):
        passed.append(before)
        scale *= factor
        source = _source(before)
        whole = value_of(source)
        saved = saved or _computes(before, whole)
        if not saved or not (cast or whole.dtype == dtype) or whole.dim() != 4:
            continue
        for order in ORDERS:
            shape = [int(whole.shape[at]) for at in order]
            if shape[0] != sizes.B or not shape[1] or sizes.H % shape[1] or shape[2:] != [rows, columns]:
                continue
            tried = tuple(length if at == order[2] else int(n) for at, n in enumerate(whole.shape))
            if _same(source, tried, order, passed, steps, scale):
                turned: Steps = () if order == ORDERS[0] else (("permute", (order,)),)
                found = Operand(TensorView(source, turned), scale, tuple(reversed(passed)), tried)
                saved = False
                break
    return found


def _computes(node: fx.Node, source: Tensor) -> bool:
    """Whether a node does more than view its source."""
    value, name = value_of(node), name_of(node)
    copies = name == "clone" or (name in ("contiguous", "reshape") and not source.is_contiguous())
    return copies or name in SCALES or (value.dtype, value.numel()) != (source.dtype, source.numel())


def _steps(own: dict[str, int], letters: str, batch: str, row: str, column: str, sizes: Sizes) -> Steps | None:
    """What makes [B, heads, row, column] of an operand; None if more than views would have to."""
    held = [letter for letter in batch if letter in letters]
    if set(letters) != {*held, row, column}:
        return None
    order = tuple(letters.index(letter) for letter in (*held, row, column))
    steps: list[tuple[str, tuple[Any, ...]]] = [] if order == tuple(range(len(order))) else [("permute", (order,))]
    full = [own[letter] == size for letter, size in zip(held, (sizes.batch[batch.index(n)] for n in held), strict=True)]
    if not batch:
        return (*steps, ("unsqueeze", (0,)), ("unsqueeze", (0,)))
    if not held or held[0] != batch[0] or not full[0]:
        return None  # one for the whole batch
    if len(batch) == 1:
        return (*steps, ("unsqueeze", (1,)) if sizes.H == 1 else ("unflatten", (0, (-1, sizes.H))))
    if len(batch) == 2:
        return tuple(steps) if len(held) == 2 else (*steps, ("unsqueeze", (1,)))
    if len(batch) != 3 or len(held) < 2 or held[1] != batch[1] or not full[1]:
        return None
    if len(held) == 2:
        return tuple(steps)
    return (*steps, ("flatten", (1, 2)) if full[2] else ("select", (2, 0)))


def result_steps(letters: str, batch: str, row: str, column: str, sizes: Sizes) -> Steps:
    """What makes a product's result, whose dimensions are ``letters``, of [B, H, row, column]."""
    steps: list[tuple[str, tuple[Any, ...]]] = []
    if not batch:
        steps += [("select", (0, 0)), ("select", (0, 0))]
    elif len(batch) == 1:
        steps.append(("select", (1, 0)) if sizes.H == 1 else ("flatten", (0, 1)))
    elif len(batch) == 3:
        steps.append(("unflatten", (1, (-1, sizes.batch[2]))))
    made = batch + row + column
    order = tuple(made.index(letter) for letter in letters)
    return tuple(steps) if order == tuple(range(len(order))) else (*steps, ("permute", (order,)))


# ---------------------------------------------------------------- what stands ahead of an operand


def ahead_of(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes whose views a node is, itself among them."""
    yield node
    for before, _ in _ahead(node):
        yield _source(before)


def _ahead(node: fx.Node) -> Iterator[tuple[fx.Node, float]]:
    """The nodes that only view, repeat, cast or scale what they are given, from the last; with what they scale by."""
    for _ in range(MOST):
        name, given, factor = name_of(node), _args(node), 1.0
        if not given or node.kwargs.get("inplace"):
            return
        source = given[0]
        if name in SCALES and len(given) == 2 and not node.kwargs:
            by = number(given[1]) if isinstance(source, fx.Node) else None
            if by is None and SCALES[name] == 1 and not isinstance(source, fx.Node):
                by, source = number(source), given[1]
            if not by:
                return
            factor = by ** SCALES[name]
        elif name not in VIEW_OPS | CASTS and not (name == "getattr" and given[1] == "mT"):
            return
        value = value_of(source)
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            return
        yield node, factor
        node = source


def _same(
    source: fx.Node, small: Sequence[int], order: tuple[int, ...], passed: Sequence[fx.Node], steps: Steps, scale: float
) -> bool:
    """Whether an operand is a node's tensor in another order of its dimensions, scaled, each head as often as the op
    takes it."""
    if torch.Size(small).numel() > MOST_ELEMENTS:
        return False
    drawn = torch.arange(1.0, 1.0 + torch.Size(small).numel(), dtype=torch.float64, device="cpu").reshape(tuple(small))
    try:
        with torch.no_grad():
            made = apply_steps(run_nodes(list(reversed(passed)), {source: drawn}), steps)
            want = scale * drawn.permute(order)
            if made.shape[1] % want.shape[1]:
                return False
            want = want.repeat_interleave(made.shape[1] // want.shape[1], 1)
            return made.shape == want.shape and bool(((made - want).abs() <= CLOSE * want.abs()).all())
    except Exception:  # it cannot be run so
        return False
