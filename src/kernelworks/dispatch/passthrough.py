"""Torch's own function, called at once where no more than a look at the arguments' kinds has to come before it.

Until the way in through C++ is built (``native/``), finding a plan in Python takes longer than a small call of torch's.
Torch's function is then what runs. An op says the call as text, and as text what that function would take and its
contract does not, of tensors of kinds that it does; ``entry.py`` writes both into the code that takes calls.

The **kind** of a call's tensors is their classes, dtypes, devices, numbers of dimensions, whether gradients are
recorded for them, and dispatch keys as they stand in the thread: no transform, mode, autocast or bit besides. The guard
by which compiled programs of torch's ask that takes a tenth of a microsecond. It is asked alone: the contract has
accepted such tensors before. What torch's function raises is caught, and the call goes the ordinary way, whose errors
are the contract's.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "KIND_GUARDS", "ExactShapes", "Passthrough", "kind_of", "never_matches", "preface", "prefix_names",
]  # fmt: skip

Kind = Callable[..., bool]

# ``bare`` are the checks of calls without the tensors that may be left out; two kinds each, the last one met first.
KIND_GUARDS = ("kind", "other", "bare", "other_bare")


@dataclass(frozen=True)
class ExactShapes:
    """For an op that has to look at shapes before torch's function is called: a kind that has them in it, once they
    were met twice in a row, needs no look at them.

    ``when`` are the conditions on shapes; ``call`` may read ``learned``, which is what ``learn(*tensors)`` said of the
    shapes. ``last``: of the last dimensions alone."""

    when: tuple[str, ...]
    call: str
    learn: Callable[..., Any]
    last: bool = False

    def sizes(self, tensor: Tensor) -> tuple[int | None, ...]:
        """The sizes that a call has to have again, None for a dimension that may be of any."""
        shape = tuple(tensor.shape)
        return (*(None for _ in shape[:-1]), *shape[-1:]) if self.last else shape


@dataclass(frozen=True)
class Passthrough:
    """``call`` is torch's function of the op's arguments, an expression; ``when`` are expressions that all hold where
    the contract accepts what that function does. ``names`` are what both read beside the arguments, ``tensors`` the
    arguments that are tensors, ``optional`` those that may all be None."""

    call: str
    tensors: tuple[str, ...]
    when: tuple[str, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    exact: ExactShapes | None = None

    def statement(self, condition: str) -> str:
        """The statement that calls torch's function, if ``condition`` holds."""
        given, needed = ", ".join((*self.tensors, *self.optional)), ", ".join(self.tensors)
        kinds = f"kind({given}) or other({given})"
        if self.optional:
            none = " is ".join((*self.optional, "None"))
            kinds = f"bare({needed}) or other_bare({needed}) if {none} else {kinds}"
        size = f"({', '.join(self.tensors)})[large]" if len(self.tensors) > 1 else self.tensors[0]
        small = f"(large is None or {size}.numel() < least)"
        if self.exact is None:
            return _attempt("if", " and ".join((condition, f"({kinds})", *self.when, small)), self.call)
        shapes = " and ".join((f"({kinds})", *self.exact.when, small, f"learn({given})"))
        return f"""
    if {" and ".join((condition, *self.when))}:
        {_attempt("if", f"exact({given}){f' and {small}' * self.exact.last}", self.exact.call, 8)}
        {_attempt("elif", shapes, self.call, 8)}
"""

    @property
    def guards(self) -> dict[str, Any]:
        """What the statement reads that changes, as long as no call is torch's function's. From ``least`` elements on,
        in the tensor in place ``large``, a call may be a kernel's of ours."""
        never = dict.fromkeys((*KIND_GUARDS, "exact", "learn"), never_matches)
        return {**never, "learned": None, "large": None, "least": 0}

    def names_beside(self, arguments: Iterable[str]) -> frozenset[str]:
        """What the statement reads beside a function's arguments. Raises ValueError if an argument has such a name: it
        would be read in its place."""
        read = frozenset((*self.guards, *self.names))
        if clash := read & set(arguments):
            raise ValueError(f"{self.call!r} reads {', '.join(sorted(clash))}, which an argument is called")
        return read

    def guarded_tensors(self, named: Mapping[str, Any]) -> tuple[tuple[Tensor, ...], bool] | None:
        """The tensors whose kinds are asked for in a call, and whether it leaves the others out."""
        bare = bool(self.optional) and all(named[name] is None for name in self.optional)
        found = tuple(named[name] for name in (self.tensors if bare else (*self.tensors, *self.optional)))
        return (found, bare) if all(isinstance(t, Tensor) for t in found) else None


def _attempt(word: str, test: str, call: str, indent: int = 4) -> str:
    lines = (
        f"{word} {test}:",
        "    try:",
        f"        return {call}",
        "    except Exception:",
        "        pass  # said in the op's words below",
    )
    return f"\n{' ' * indent}".join(lines)


def never_matches(*tensors: Any) -> bool:
    """The kind that no call is of."""
    return False


def kind_of(tensors: Sequence[Tensor], exact: ExactShapes | None = None) -> Kind:
    """Whether tensors are of the kind of these, in a thread that stands as this one does now, and of the sizes that
    ``exact`` asks for. A tensor that stands in several places has to stand there again."""
    first = [next(i for i, t in enumerate(tensors) if t is tensor) for tensor in tensors]
    single = [t for i, t in enumerate(tensors) if first[i] == i]
    sizes = [list(exact.sizes(t)) if exact else [None] * t.dim() for t in single]
    try:
        guards: Any = torch._C._dynamo.guards
        free = [[None] * t.dim() for t in single]
        check: Kind = guards.TensorGuards(*single, dynamic_dims_sizes=sizes, dynamic_dims_strides=free).check
        if len(single) < len(tensors):
            check = _repeating(check, first)
        return check if check(*tensors) is True else never_matches
    except (AttributeError, TypeError, RuntimeError):  # another torch's are not known to say the same
        return never_matches


def _repeating(check: Kind, first: Sequence[int]) -> Kind:
    """The check of tensors of which each is the one in its ``first`` place."""
    names = [f"t{i}" for i in range(len(first))]
    same = " and ".join(f"{names[i]} is {names[j]}" for i, j in enumerate(first) if i != j)
    once = ", ".join(names[i] for i, j in enumerate(first) if i == j)
    made: Kind = eval(f"lambda {', '.join(names)}: {same} and check({once})", {"check": check})
    return made


# ---------------------------------------------------------------- an op's public function

# Of what the code reads among the globals of the function's own module, which may have several such functions.
_PREFIX = "_at_once_{}_"


def prefix_names(function: str, values: dict[str, Any]) -> dict[str, Any]:
    """Values by the names that a function with a preface reads them by."""
    return {f"{_PREFIX.format(function)}{name}": value for name, value in values.items()}


class _Renamed(ast.NodeTransformer):
    def __init__(self, function: str, names: frozenset[str]) -> None:
        self.prefix, self.names = _PREFIX.format(function), names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(f"{self.prefix}{node.id}", node.ctx) if node.id in self.names else node


def preface(function: types.FunctionType, direct: Passthrough) -> types.CodeType:
    """Code for the function that calls torch's where that may be, else the function as it was (``as_written``): one
    frame less than if that called ``Op.call`` for it."""
    code = function.__code__
    places, count = code.co_varnames[: code.co_argcount], code.co_argcount + code.co_kwonlyargcount
    named, more = code.co_varnames[code.co_argcount : count], code.co_varnames[count:]
    rest = more[0] if code.co_flags & inspect.CO_VARARGS else ""
    others = more[bool(rest)] if code.co_flags & inspect.CO_VARKEYWORDS else ""
    signature = [f"{name}=0" for name in places]
    if code.co_posonlyargcount:
        signature.insert(code.co_posonlyargcount, "/")
    signature += [f"*{rest}"] * bool(rest) or ["*"] * bool(named)
    signature += [f"{name}=0" for name in named] + [f"**{others}"] * bool(others)
    handed = [
        *places,
        *[f"*{rest}"] * bool(rest),
        *(f"{name}={name}" for name in named),
        *[f"**{others}"] * bool(others),
    ]
    none = "".join(f" and not {name}" for name in (rest, others) if name)
    source = f"""
def {function.__name__}({", ".join(signature)}):
    if is_compiling():
        return as_written({", ".join(handed)})
    {direct.statement(f"out is kernel is None{none}")}
    return as_written({", ".join(handed)})
"""
    read = direct.names_beside((*places, *named, *more)) | {"is_compiling", "as_written"}
    tree = ast.fix_missing_locations(_Renamed(function.__name__, read).visit(ast.parse(source.strip())))
    for node in ast.walk(tree):  # a traceback shows the first line of the function
        if isinstance(node, (ast.stmt, ast.expr, ast.arg, ast.keyword)):
            node.lineno, node.end_lineno, node.col_offset, node.end_col_offset = 1, 1, 0, 0
    scope: dict[str, Any] = {}
    exec(compile(tree, code.co_filename, "exec"), scope)
    made: types.CodeType = scope[function.__name__].__code__
    return made.replace(co_firstlineno=code.co_firstlineno, co_qualname=code.co_qualname)
