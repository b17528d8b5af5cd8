"""Ops and the choice among their rows.

``choose(op, request)`` is a pure function of the rows, the certificates, the tuning table and the machine. ``Op`` puts
it behind a cache of plans, so that a small call costs about a microsecond, and behind ``torch.library``, so that the
same call is differentiable and clean under ``torch.compile``.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler
from torch.nn import Parameter

from kernelworks import certificates
from kernelworks.build import BuildError, library
from kernelworks.contract import Contract, Mutant, Request, Row, spec
from kernelworks.entry import entry
from kernelworks.machine import kind_of

__all__ = ["OPS", "Choice", "Op", "Pass", "choose", "eligible", "on_meta", "preferences"]

LIBRARY: Any = torch.library.Library("kernelworks", "DEF")  # type: ignore[no-untyped-call]
OPS: dict[str, Op] = {}  # filled by the rooms that `kernelworks.ops` lists, in that order

_get_threads = torch.get_num_threads
_grad_enabled = torch.is_grad_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_functorch_level = torch._C._functorch.maybe_current_level

PLANS = Path(__file__).resolve().parent / "build" / "plans.cpp"
MOST_PLANS = 4096  # a decode loop meets a new length at every token; beyond this many the plans are dropped


# ---------------------------------------------------------------- choosing


@dataclass(frozen=True)
class Choice:
    """The row taken and, for every row above it, why it was not."""

    row: Row
    declined: tuple[tuple[str, str], ...]
    because: str  # "list order", "tuning: ...", or "asked for by name"


class Broken(str):
    """A reason of the machine's, not of the request's: a row that could not be built or loaded. ``about`` names what is
    at fault."""

    about: str

    def __new__(cls, error: BuildError) -> Broken:
        made = super().__new__(cls, error)
        made.about = error.about
        return made


_said: set[str] = set()  # the faults that a warning has named


@functools.cache
def _tuning(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        return tuple(tomllib.loads(path.read_text(encoding="utf-8")).get("prefer", ()))
    except FileNotFoundError:
        return ()


def preferences(op: Op) -> tuple[Mapping[str, Any], ...]:
    """The entries of an op's tuning table that put rows in another order, as written."""
    return _tuning(op.room / "tuning.toml")


def _matches(entry: Mapping[str, Any], request: Request, dims: Mapping[str, int], kind: str | None) -> bool:
    if entry.get("pass", "forward") != request.pass_:
        return False
    if "machine" in entry:
        if kind is None and request.device == "meta":
            return False
        if entry["machine"] != (kind or kind_of(request.device)):
            return False
    have = {**dims, "threads": request.threads}
    for name, wanted in entry["when"].items():
        if name == "dtype":
            if str(request.dtype).removeprefix("torch.") not in wanted:
                return False
        elif name not in have or not wanted[0] <= have[name] <= wanted[1]:
            return False
    return True


def _order(op: Op, request: Request, kind: str | None = None) -> tuple[Sequence[Row], str]:
    """The rows in the order they are tried: what the tuning table prefers first, else as listed."""
    entries = _tuning(op.room / "tuning.toml")
    if entries:
        dims = op.contract.dims(request)
        for entry in entries:
            if _matches(entry, request, dims, kind):
                first = [op.row(name) for name in entry["rows"]]
                return [*first, *(r for r in op.rows if r not in first)], f"tuning: {entry['evidence']}"
    return op.rows, "list order"


def _declines(op: Op, row: Row, request: Request, *, certified: bool, kind: str | None = None) -> str | None:
    """Why this row does not serve this request, or None. Builds nothing."""
    if request.pass_ not in row.passes:
        return f"has no {request.pass_}"
    reason = row.guard(request)
    if reason:
        return reason
    if certified and row.target == "scalar":  # never quicker than what the user has today
        return "plain code, for reading and checking; runs when asked for by name"
    return certificates.invalid(op.name, row, kind) if certified else None


def _unusable(op: Op, row: Row, request: Request, *, certified: bool) -> str | None:
    """Why this row cannot serve this request, or None. Builds the row's library where that is the last question."""
    try:
        reason = _declines(op, row, request, certified=certified)
        if reason:
            return reason
        row.load(request.pass_)
    except BuildError as error:
        return Broken(error)
    return None


def eligible(op: Op, request: Request, kind: str | None = None) -> Row:
    """The row that ``choose`` takes where its build does not fail, asked without building anything.

    ``kind`` is the kind of machine, by default this one. Raises RuntimeError where no row serves the request.
    """
    for candidate in _order(op, request, kind)[0]:
        if _declines(op, candidate, request, certified=True, kind=kind) is None:
            return candidate
    raise RuntimeError(f"no row of {op.name} serves the request")


def choose(op: Op, request: Request, row: str | None = None) -> Choice:
    """The row for a request, with the reason why each row before it declined.

    With ``row`` given, that row or an exception: ValueError where there is no such row, RuntimeError where it cannot
    run. A row asked for by name needs no certificate.
    """
    if row is not None:
        wanted = op.row(row)
        reason = _unusable(op, wanted, request, certified=False)
        if reason:
            raise RuntimeError(f"row {row!r} of {op.name} cannot run: {reason}")
        return Choice(wanted, (), "asked for by name")
    declined: list[tuple[str, str]] = []
    rows, because = _order(op, request)
    for candidate in rows:
        reason = _unusable(op, candidate, request, certified=True)
        if reason is None:
            return Choice(candidate, tuple(declined), because)
        declined.append((candidate.name, reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in declined)
    raise RuntimeError(f"no row of {op.name} can run: {reasons}")


# ---------------------------------------------------------------- ops


@dataclass(frozen=True)
class Pass:
    """One direction of an op as torch knows it.

    ``schema`` is torch.library's, its argument names those of the contract; ``fake(*args)`` gives outputs of the right
    shape without data. A backward's arguments are named ``grad_<output>``, or as an input or output of the forward;
    ``bool[] needs`` receives which of ``returns`` (input names) autograd wants; the others may be empty tensors.
    ``free`` names numbers that no choice of a row depends on, with an expression that holds where they are valid: it
    enters the key of a plan in their place, so that another value (the next step) needs no other plan.
    """

    schema: str
    fake: Callable[..., Any]
    returns: tuple[str, ...] = ()
    free: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        parsed = torch._C.parse_schema(self.schema)
        object.__setattr__(self, "names", tuple(a.name for a in parsed.arguments if a.name != "row"))


Plan = Callable[..., Any]


class Op:
    """An op: its contract, its rows (best first, ``torch`` and ``reference`` last), and how torch sees it.

    A call ``op(*args, out=, row=)`` takes positional arguments in the order of the forward's schema.
    """

    def __init__(
        self,
        contract: Contract,
        rows: Sequence[Row],
        *,
        room: str,
        forward: Pass,
        backward: Pass | None = None,
        mutants: Sequence[Mutant] = (),
        to_torch: Callable[..., Any] | None = None,
        from_torch: Callable[..., Any] | None = None,
    ) -> None:
        """``to_torch(result, *args)`` and ``from_torch(result, *args)`` turn what rows return into what the schema
        says and back, where the two differ (an optional second output, say)."""
        if [r.name for r in rows][-2:] != ["torch", "reference"]:
            raise ValueError(f"the last two rows of {contract.name} must be torch and reference")
        self.name = contract.name
        self.contract = contract
        self.rows = tuple(rows)
        self.room = Path(room).resolve().parent
        self.mutants = tuple(mutants)
        self.passes = {"forward": forward} | ({"backward": backward} if backward else {})
        self._to_torch, self._from_torch = to_torch, from_torch
        self._plans: dict[Any, Any] = {}
        self._planning = threading.Lock()
        self.call, self._scope = entry(self)
        self._register()
        OPS[self.name] = self

    def row(self, name: str) -> Row:
        """The row of this name. Raises ValueError that lists the rows there are."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(f"row must be one of {', '.join(r.name for r in self.rows)} for {self.name}, got {name!r}")

    # ------------------------------------------------------------ calling

    def __call__(self, *args: Any, out: Any = None, row: str | None = None) -> Any:
        return self.call(*args, out=out, row=row)

    def _miss(self, args: tuple[Any, ...], out: Any, row: str | None, key: Any) -> Any:
        """The first call of its kind, or one that torch has to see."""
        leaves = [leaf for value in (*args, out) for leaf in _leaves(value) if isinstance(leaf, Tensor)]
        watched = (
            _dispatch_modes()
            or _function_modes()
            or profiler._is_profiler_enabled
            or _functorch_level() is not None
            or any(type(t) is not Tensor and type(t) is not Parameter for t in leaves)
            or (_grad_enabled() and any(t.requires_grad for t in leaves))
        )
        if watched:
            return self._through_torch(args, out, row)
        plan = self._plan("forward", args, out, row, key)
        if key is not None and row is None and self._scope is not None:
            self._keep(plan, args, out)
        return plan(*args, out=out)

    def _keep(self, plan: Plan, args: tuple[Any, ...], out: Any) -> None:
        """Lets the entry find a plan in C: a third of the time that the same key takes in Python."""
        try:
            plans = library(PLANS, "scalar")
        except BuildError:  # no compiler: calls are as right as ever, only slower by a microsecond
            return
        scope = self._scope
        assert scope is not None
        if out is not None and type(out) is not Tensor:
            return
        with self._planning:
            quick = scope["quick"]
            if quick is None or len(quick[1]) >= MOST_PLANS:
                quick = (plans.table(), [])  # a new one: a caller may be between finding a number and looking it up
            quick[1].append(plan)
            with contextlib.suppress(Exception):
                plans.keep(quick[0], len(quick[1]) - 1, _get_threads(), *args, out)
            scope["find"], scope["quick"] = plans.find, quick

    def forget(self) -> None:
        """Drops all plans: the next call of each kind chooses anew."""
        with self._planning:
            self._plans.clear()
            if self._scope is not None:
                self._scope["quick"] = None

    def run(self, pass_: str, args: tuple[Any, ...], out: Any = None, row: str | None = None) -> Any:
        """Runs one pass on real tensors, below autograd."""
        key = (pass_, row, _get_threads(), *(spec(a) for a in args), spec(out))
        plan: Plan | None = self._plans.get(key)
        if plan is None:
            plan = self._plan(pass_, args, out, row, key)
        return plan(*args, out=out)

    def trains(self, args: tuple[Any, ...], row: str | None) -> tuple[Plan, Plan] | None:
        """How the row that takes a forward makes gradients with it, or None where it has no such passes.

        ``training(*args, needs=)`` returns the forward's result and what ``resumed(kept, grad)`` makes gradients of.
        """
        seen = [(a.dtype, a.shape, a.stride(), a.get_device()) if isinstance(a, Tensor) else a for a in args]
        key = ("training", row, _get_threads(), *seen)
        if key not in self._plans:
            self.contract.check(**dict(zip(self.passes["forward"].names, args, strict=True)))
            taken = self._trainer(args, row)
            with self._planning:
                self._plans[key] = taken and (taken.load("training"), taken.load("resumed"))
        found: tuple[Plan, Plan] | None = self._plans[key]
        return found

    def _trainer(self, args: tuple[Any, ...], row: str | None) -> Row | None:
        """The row whose training pass serves a call: the one asked for, if it has one, or the first above torch's."""
        request = Request(self.name, "training", self.request("forward", args).args, _get_threads())
        if row is not None:
            return choose(self, request, row).row if "training" in self.row(row).passes else None
        for candidate in _order(self, request)[0]:
            if candidate.source is None:
                break
            if "training" in candidate.passes and _unusable(self, candidate, request, certified=True) is None:
                return candidate
        return None

    def request(self, pass_: str, args: Sequence[Any]) -> Request:
        named = dict(zip(self.passes[pass_].names, (spec(a) for a in args), strict=True))
        return Request(self.name, pass_, named, _get_threads())

    def _plan(self, pass_: str, args: tuple[Any, ...], out: Any, row: str | None, key: Any) -> Plan:
        """Checks the arguments once for all calls that look like this one, and settles the row."""
        if pass_ == "forward":
            self.contract.check(**dict(zip(self.passes[pass_].names, args, strict=True)))
            if out is not None:
                self._check_out(args, out)
        choice = choose(self, self.request(pass_, args), row)
        self._warn_of_build_failure(choice)
        plan: Plan = choice.row.load(pass_)
        if choice.row.prepare is not None:
            plan = choice.row.prepare(pass_, args) or plan
        if key is not None:
            with self._planning:
                if len(self._plans) >= MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = plan
        return plan

    def _warn_of_build_failure(self, choice: Choice) -> None:
        """Once for each thing at fault, whichever ops and rows it takes."""
        for name, reason in choice.declined:
            if isinstance(reason, Broken) and reason.about not in _said:
                _said.add(reason.about)
                warnings.warn(
                    f"kernelworks.{self.name} runs its {choice.row.name!r} row ({name!r} is not there): {reason[:800]}",
                    RuntimeWarning,
                    stacklevel=5,
                )

    def forward_shapes(self, args: tuple[Any, ...]) -> Any:
        """What the forward returns for these arguments, as meta tensors; None for an op that works in place."""
        if self.contract.mutates:
            return None
        shapes = self.passes["forward"].fake(*[on_meta(a) for a in args])
        return self._from_torch(shapes, *args) if self._from_torch else shapes

    def _check_out(self, args: tuple[Any, ...], out: Any) -> None:
        wanted = self.forward_shapes(args)
        pairs = zip(_tuple(wanted), _tuple(out), strict=True) if len(_tuple(wanted)) == len(_tuple(out)) else None
        if pairs is None:
            raise ValueError(f"out must hold {len(_tuple(wanted))} tensors for {self.name}, got {len(_tuple(out))}")
        for want, got in pairs:
            if not isinstance(got, Tensor):
                raise TypeError(f"out must be a torch.Tensor, got {type(got).__name__}")
            if got.dtype != want.dtype:
                raise TypeError(f"out must have dtype {want.dtype}, got {got.dtype}")
            if got.shape != want.shape:
                raise ValueError(f"out must have shape {list(want.shape)}, got {list(got.shape)}")
            if not got.is_contiguous():
                raise ValueError(f"out must be contiguous, got strides {list(got.stride())}")

    # ------------------------------------------------------------ torch.library

    def _register(self) -> None:
        for pass_, definition in self.passes.items():
            name = self.name if pass_ == "forward" else f"{self.name}_backward"
            LIBRARY.define(definition.schema)
            LIBRARY.impl(name, functools.partial(self._implementation, pass_), "CompositeExplicitAutograd")
            fake = functools.partial(_fake, definition.fake, len(definition.names))
            torch.library.register_fake(f"kernelworks::{name}", fake, lib=LIBRARY)
        self._overload = getattr(torch.ops.kernelworks, self.name).default
        if "backward" in self.passes:
            self._backward_overload = getattr(torch.ops.kernelworks, f"{self.name}_backward").default
            torch.library.register_autograd(
                f"kernelworks::{self.name}", self._backward, setup_context=self._setup_context, lib=LIBRARY
            )

    def _implementation(self, pass_: str, *args: Any, row: str | None = None) -> Any:
        names = self.passes[pass_].names
        if len(args) > len(names):  # torch passes `row` by position
            args, row = args[: len(names)], args[len(names)]
        result = self.run(pass_, args, None, row)
        return self._to_torch(result, *args) if self._to_torch and pass_ == "forward" else result

    def _through_torch(self, args: tuple[Any, ...], out: Any, row: str | None) -> Any:
        """The same call as a torch operator: seen by autograd, torch.compile, modes and profilers."""
        if self.contract.mutates:
            return self._overload(*args, row)
        self.contract.check(**dict(zip(self.passes["forward"].names, args, strict=True)))
        result = self._overload(*args, row)
        if self._from_torch:
            result = self._from_torch(result, *args)
        if out is None:
            return result
        for target, value in zip(_tuple(out), _tuple(result), strict=True):
            if target.requires_grad or (_grad_enabled() and value.requires_grad):
                raise RuntimeError("out= does not support autograd: no argument may require grad")
            target.copy_(value)
        return out

    def _setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        forward, backward = self.passes["forward"], self.passes["backward"]
        have = dict(zip((*forward.names, "row"), inputs, strict=False))
        have |= dict(zip(self.contract.outputs, _tuple(output), strict=True))
        kept = [n for n in backward.names if n in have]
        ctx.tensor_names = [n for n in kept if isinstance(have[n], Tensor)]
        ctx.save_for_backward(*(have[n] for n in ctx.tensor_names))
        ctx.others = {n: have[n] for n in kept if n not in ctx.tensor_names}
        ctx.row = have.get("row")
        ctx.absent = {n for n in forward.names if have[n] is None}
        differentiable = {n.removeprefix("grad_") for n in backward.names if n.startswith("grad_")}
        rest = [o for n, o in zip(self.contract.outputs, _tuple(output), strict=True) if n not in differentiable]
        if rest:
            ctx.mark_non_differentiable(*rest)

    def _backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        forward, backward = self.passes["forward"], self.passes["backward"]
        have: dict[str, Any] = dict(zip((f"grad_{n}" for n in self.contract.outputs), grads, strict=True))
        have |= ctx.others | dict(zip(ctx.tensor_names, ctx.saved_tensors, strict=True))
        wanted = dict(zip(forward.names, ctx.needs_input_grad, strict=False))
        have["needs"] = [bool(wanted[n]) and n not in ctx.absent for n in backward.returns]
        result = _tuple(self._backward_overload(*(have[n] for n in backward.names), ctx.row))
        by_name = dict(zip(backward.returns, result, strict=True))
        gradients = [by_name.get(n) if wanted[n] and n not in ctx.absent else None for n in forward.names]
        return (*gradients, None)  # None for `row`


def _leaves(value: Any) -> list[Any]:
    return [leaf for v in value for leaf in _leaves(v)] if isinstance(value, (list, tuple)) else [value]


def _fake(fake: Callable[..., Any], count: int, *args: Any, row: str | None = None) -> Any:
    return fake(*args[:count])  # torch passes `row` by position or by name


def on_meta(value: Any) -> Any:
    """A tensor (or a list of them) without its data; anything else as it is."""
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [on_meta(v) for v in value] if isinstance(value, (list, tuple)) else value


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
