"""An op: its contract, its rows, how it is called, and how torch sees it.

``Op`` puts the choice among rows (``choose.py``) behind a cache of plans, so that a small call costs about a
microsecond, and behind ``torch.library``, so that the same call is differentiable and clean under ``torch.compile``.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.autograd import derivative
from kernelworks.build import BuildError, library
from kernelworks.choose import Broken, Choice, choose, order, unusable
from kernelworks.contract import Contract, Mutant, Request, Row, spec
from kernelworks.entry import entry
from kernelworks.plain import (
    LISTED,
    OTHER,
    PLAIN,
    RESOLVABLE,
    TRACED,
    TRANSFORM,
    key_of,
    leaves,
    observed,
    resolved,
    standing,
    transformed,
    untraced,
)
from kernelworks.torch_library import register
from kernelworks.written import announce, check_out, overlap, put, refuse_crossed, same_place

__all__ = ["OPS", "Op", "Pass", "on_meta"]

OPS: dict[str, Op] = {}  # filled by the rooms that `kernelworks.ops` lists, in that order

_get_threads = torch.get_num_threads
_grad_enabled = torch.is_grad_enabled

PLANS = Path(__file__).resolve().parent / "build" / "plans.cpp"
MOST_PLANS = 4096  # a decode loop meets a new length at every token; beyond this many the plans are dropped

_said: set[str] = set()  # the faults that a warning has named


@dataclass(frozen=True)
class Pass:
    """One direction of an op as torch knows it.

    ``schema`` is torch.library's, its argument names those of the contract; ``fake(*args)`` gives outputs of the right
    shape without data. A backward's arguments are named ``grad_<output>``, or as an input or output of the forward;
    ``bool[] needs`` receives which of ``returns`` (input names) autograd wants; the others may be empty tensors.
    ``free`` names numbers that no choice of a row depends on, with a test that holds where they are valid: they then
    are no part of a plan's key, so that another value (the next step) needs no other plan.
    ``reads`` says for an input's gradient which of the backward's tensors its value depends on, where that is not all:
    what no gradient that is wanted depends on may be written between the passes, as with torch's own functions.
    """

    schema: str
    fake: Callable[..., Any]
    returns: tuple[str, ...] = ()
    free: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
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
        composite: Callable[..., Any] | None = None,
        pointwise: bool = False,
        to_torch: Callable[..., Any] | None = None,
        from_torch: Callable[..., Any] | None = None,
    ) -> None:
        """``composite(*args)`` is the forward in torch's own functions, as a user would write it: what autograd,
        torch.func and jit.trace can look into. Arguments by position or name; by default the ``torch`` row's forward.
        ``pointwise`` says that no element of the output needs one of the inputs elsewhere, so that ``out`` may be an
        input. ``to_torch(result, *args)`` and ``from_torch(result, *args)`` turn what rows return into what the schema
        says and back, where the two differ (an optional second output, say)."""
        if [r.name for r in rows][-2:] != ["torch", "reference"]:
            raise ValueError(f"the last two rows of {contract.name} must be torch and reference")
        self.name = contract.name
        self.contract = contract
        self.rows = tuple(rows)
        self.room = Path(room).resolve().parent
        self.mutants = tuple(mutants)
        self.passes = {"forward": forward} | ({"backward": backward} if backward else {})
        self._composite = composite or self.row("torch").load("forward")
        self.pointwise = pointwise
        self._to_torch, self._from_torch = to_torch, from_torch
        self._plans: dict[Any, Any] = {}
        self._planning = threading.Lock()
        self._finders: list[dict[str, Any]] = []
        self._overload: Any = None  # set by register()
        self._backward_overload: Any = None
        scope = entry(self)
        self.call, self._look = scope["call"], scope["look"]
        self._keep = self.found_by(scope)
        register(self)
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

    def composite(self, *args: Any, **named: Any) -> Any:
        """The forward in torch's own functions, whatever autocast says: the op's dtype is its inputs'."""
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return self._composite(*args, **named)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return self._composite(*args, **named)

    def _miss(self, args: tuple[Any, ...], out: Any, row: str | None) -> Any:
        """A call that was not found: the first of its kind, one that is not kept in C, or one that is not plain."""
        key = None
        if not transformed() and not observed():
            graded = _grad_enabled() and any(t.requires_grad for t in leaves((*args, out)))
            if not graded:
                key = self._key("forward", args, out, row)
                plan = self._plans.get(key)
                if plan is not None:
                    return self._run_plan(plan, args, out)
        kinds = {standing(t) for t in leaves((*args, out))}
        if transformed() or OTHER in kinds:
            return self._through_composite(args, out, row)
        if observed() or TRACED in kinds:
            return self._through_torch(args, out, row)
        if RESOLVABLE in kinds:
            written = [out, *(args[self.passes["forward"].names.index(n)] for n in self.contract.mutates)]
            if any(standing(t) == RESOLVABLE for t in leaves(written)):
                return self._through_composite(args, out, row)
            return self.call(*(resolved(a) for a in args), out, row)
        if key is None:
            return self._through_torch(args, out, row)
        plan = self._plan("forward", args, out, row, key)
        if out is None or type(out) is Tensor:
            self._keep(plan, row, *self._look(*args), out)
        return self._run_plan(plan, args, out)

    def _run_plan(self, plan: Plan, args: tuple[Any, ...], out: Any) -> Any:
        """Runs a plan for plain tensors, and says what it writes."""
        if self.contract.mutates:
            announce(leaves(args[self.passes["forward"].names.index(name)] for name in self.contract.mutates))
        if out is None:
            return plan(*args)
        refuse_crossed(out)
        if overlap(out, args) and not (self.pointwise and all(same_place(out, t) for t in leaves(args))):
            return put(plan(*args), out)  # what was not read yet must not be overwritten
        announce(leaves((out,)))
        return plan(*args, out=out)

    def _key(self, pass_: str, args: tuple[Any, ...], out: Any, row: str | None) -> Any:
        free = self.passes[pass_].free
        if free:
            named = zip(self.passes[pass_].names, args, strict=True)
            args = tuple("free" if name in free and free[name](value) else value for name, value in named)
        return key_of(pass_, args, out, row, _get_threads())

    def found_by(self, scope: dict[str, Any]) -> Callable[..., None]:
        """Has code find its plans in C: a third of the time that the same key takes in Python.

        ``scope`` is where that code finds ``find`` and ``quick``; the answer is ``keep(plan, row, *arguments, out)``.
        """
        self._finders.append(scope)

        def keep(plan: Plan, *look: Any) -> None:
            try:
                plans = library(PLANS, "scalar")
            except BuildError:  # no compiler: calls are as right as ever, only slower by microseconds
                return
            with self._planning:
                quick = scope["quick"]
                if quick is None or len(quick[1]) >= MOST_PLANS:
                    quick = (plans.table(), [])  # a new one: a caller may be between finding a number and using it
                quick[1].append(plan)
                with contextlib.suppress(Exception):
                    plans.keep(quick[0], len(quick[1]) - 1, _get_threads(), *look)
                scope["find"], scope["quick"] = plans.find, quick

        return keep

    def forget(self) -> None:
        """Drops all plans: the next call of each kind chooses anew."""
        with self._planning:
            self._plans.clear()
            for scope in self._finders:
                scope["quick"] = None

    def run(self, pass_: str, args: tuple[Any, ...], out: Any = None, row: str | None = None) -> Any:
        """Runs one pass on tensors that hold data, below autograd."""
        key = self._key(pass_, args, out, row)
        plan = self._plans.get(key)
        if plan is None:
            kinds = {standing(t) for t in leaves((*args, out))}
            if OTHER in kinds or TRACED in kinds:
                if pass_ == "backward":
                    return derivative(self, args)
                return self._through_composite(args, out, row)
            if RESOLVABLE in kinds:
                return self.run(pass_, tuple(resolved(a) for a in args), out, row)
            plan = self._plan(pass_, args, out, row, key)
        return self._run_plan(plan, args, out) if pass_ == "forward" else plan(*args, out=out)

    def _settled(self, pass_: str, args: tuple[Any, ...], out: Any, row: str | None) -> Plan:
        key = self._key(pass_, args, out, row)
        plan: Plan | None = self._plans.get(key)
        return self._plan(pass_, args, out, row, key) if plan is None else plan

    def trains(self, args: tuple[Any, ...], row: str | None) -> tuple[Plan, Plan] | None:
        """How the row that takes a forward makes gradients with it, or None where it has no such passes.

        ``training(*args, needs=)`` returns the forward's result and what ``resumed(kept, grad)`` makes gradients of.
        """
        key = key_of("training", args, None, row, _get_threads())
        if key is None or key not in self._plans:
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
            asked = self.row(row)
            able = "training" in asked.passes and unusable(self, asked, request, certified=False) is None
            return asked if able else None
        for candidate in order(self, request)[0]:
            if candidate.source is None:
                break
            if "training" in candidate.passes and unusable(self, candidate, request, certified=True) is None:
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
                check_out(self.name, self.forward_shapes(args), out, args)
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

    # ------------------------------------------------------------ calls that no row serves at once

    def _through_torch(self, args: tuple[Any, ...], out: Any, row: str | None) -> Any:
        """The same call as a torch operator: seen by autograd, torch.compile, modes and profilers."""
        self.contract.check(**dict(zip(self.passes["forward"].names, args, strict=True)))
        strange = torch.compiler.is_compiling() and any(isinstance(a, Tensor) and type(a) not in PLAIN for a in args)
        if strange and row is None:  # a subclass (DTensor, say) knows torch's operators, not ours
            return self._handed_out(self.composite(*args), args, out)
        result = self._overload(*args, row)
        if self._from_torch:
            result = self._from_torch(result, *args)
        return self._handed_out(result, args, out)

    def _through_composite(self, args: tuple[Any, ...], out: Any, row: str | None) -> Any:
        """The same call in torch's own functions: for tensors and transforms that no kernel of ours may serve."""
        if row not in (None, "torch"):
            self.row(row)
            why = TRANSFORM if transformed() else f"a tensor is {LISTED[OTHER]}"
            raise RuntimeError(f"row {row!r} of {self.name} cannot run: {why}; ask for no row")
        if all(t.layout is torch.strided and not t.is_nested for t in leaves(args)):
            with untraced():
                self.contract.check(**dict(zip(self.passes["forward"].names, args, strict=True)))
        return self._handed_out(self.composite(*args), args, out)

    def _handed_out(self, result: Any, args: tuple[Any, ...], out: Any) -> Any:
        if out is None:
            return result
        check_out(self.name, result, out, args)
        return put(result, out)


def on_meta(value: Any) -> Any:
    """A tensor (or a list of them) without its data; anything else as it is."""
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [on_meta(v) for v in value] if isinstance(value, (list, tuple)) else value
