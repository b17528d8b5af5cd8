"""Steps over lists of tensors, in place: each element of the written lists becomes a function of the elements in its
place in all of them, and of numbers. Optimizers are such.

An op package says in ``contract.py`` what only it knows (``Step``). The contract follows, with its checks, calls that
must raise, definition, cost, cases and known-wrong versions; so does the op with its schema.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import python_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of, schema_of
from kernelworks.contract.cases import LENGTHS, draw, normal
from kernelworks.contract.lists import Tensors, lists_of, written_of
from kernelworks.contract.results import Result
from kernelworks.dispatch.op import Op, Pass
from kernelworks.templates.op_package import OpPackage

__all__ = ["Draw", "Step", "launch_lists"]

F32 = torch.float32
KINDS = ("large_mean", "tiny", "huge", "subnormal", "constant", "zeros", "inf", "negative_inf", "nan")
BENCH = {"1 x 2048x2048": ((2048, 2048),), "16 x 384x384": ((384, 384),) * 16}
# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH = {"16 x 4096x4096": ((4096, 4096),) * 16, "64 x 1024x1024": ((1024, 1024),) * 64}
VECTOR = 16  # elements, of the widest vectors that op packages are compiled for

Tensors64 = tuple[Tensor, ...]
Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Draw:
    """How a list's values are drawn: normal ones of a spread, or the case's kind of values; then a function of them."""

    scale: float = 1.0
    kind: bool = False
    then: Callable[[Tensor], Tensor] | None = None

    def __call__(self, generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> Tensor:
        if self.kind:
            made = draw(kind, generator, dtype, *shape)
        else:
            made = normal(generator, dtype, *shape, scale=self.scale)
        return made if self.then is None else self.then(made)


@dataclass(frozen=True, kw_only=True)
class Step(OpPackage):
    """What only the op package knows of a step.

    ``called`` is the op's name. ``arguments`` are lists (``Tensors``), the first that of the parameters, then numbers.
    ``step(*tensors, **numbers)`` is the definition, for the tensors in one place of each list that is not empty, by
    their order: the new values of the written ones. ``error(tensors, after, numbers)``, all by name and in float64,
    is how far a right kernel in float32 may be off before it rounds them. ``draws`` says how each list is drawn,
    ``usual`` the numbers of a case that says no others, and ``tries`` cases with other numbers, by name. ``resets``
    are the numbers of a first step, at which the states are what ``fresh`` says, by default zeros. ``many`` are those
    of the case of so many elements that a state of 16 bits is 0 somewhere, which torch's step may divide by. ``work``
    counts the flop and the elementary functions of an element. ``free`` says of numbers that no choice of a kernel
    depends on where they are valid.
    """

    called: str
    formula: str
    source: str
    arguments: Arguments
    step: Callable[..., Tensors64]
    error: Callable[[Mapping[str, Tensor], Tensors64, Numbers], Tensors64]
    draws: Mapping[str, Draw]
    usual: Numbers
    tries: Mapping[str, Numbers]
    resets: Numbers
    work: tuple[float, float]
    free: Mapping[str, Callable[[Any], bool]]
    fresh: float = 0.0
    many: Numbers = field(default_factory=dict)
    cases: tuple[Case, ...] = ()

    @functools.cached_property
    def lists(self) -> tuple[str, ...]:
        return lists_of(self.arguments)

    @functools.cached_property
    def written_lists(self) -> tuple[str, ...]:
        return written_of(self.arguments)

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(name for name in self.lists if self._list(name).state)

    def _list(self, name: str) -> Tensors:
        argument = self.arguments[name]
        assert isinstance(argument, Tensors)
        return argument

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        return Contract(
            name=self.called,
            family=self.folder.parent.name,
            formula=self.formula,
            source=self.source,
            outputs=self.written_lists,
            results={name: Result(name) for name in self.written_lists if self._list(name).state},
            differentiable=(),
            check=check_of(self.arguments),
            reference=self._reference,
            bound=self._bound,
            cost=self._cost,
            dims=self._dims,
            cases=(*self._cases(), *self.cases),
            bench_cases=self._bench(BENCH),
            device_cases=self._device_cases(),
            device_bench_cases=self._bench(DEVICE_BENCH),
            mutates=self.written_lists,
            errors=errors_of(self.arguments),
        )

    def split(self, args: Sequence[Any]) -> tuple[dict[str, Sequence[Tensor]], dict[str, Any]]:
        """A call's lists that hold something, and its numbers, by name."""
        named = dict(zip(self.arguments, args, strict=True))
        lists = {name: named.pop(name) for name in self.lists}
        return {name: tensors for name, tensors in lists.items() if tensors}, named

    def _reference(self, *args: Any, **named: Any) -> tuple[Any, ...]:
        lists, numbers = self.split((*args, *(named[name] for name in tuple(self.arguments)[len(args) :])))
        made = [self.step(*tensors, **numbers) for tensors in zip(*lists.values(), strict=True)]
        return tuple(tuple(one[i] for one in made) for i, name in enumerate(self.written_lists) if name in lists)

    def _bound(
        self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, *, given: dict[str, Any]
    ) -> tuple[Any, ...]:
        lists, numbers = self.split([args[name] for name in self.arguments])
        written = [name for name in self.written_lists if name in lists]
        n, made = len(args[self.lists[0]]), []
        for i in range(n):
            after = tuple(outputs[i + k * n] for k in range(len(written)))
            errors = self.error({name: tensors[i] for name, tensors in lists.items()}, after, numbers)
            dtypes = (given[name][i].dtype for name in written)  # a state may be float32 beside 16-bit parameters
            # What is rounded is up to so far from the definition: the rounding is of that.
            made.append([rounding(a.abs() + e, own) + e for a, own, e in zip(after, dtypes, errors, strict=True)])
        return tuple(tuple(one[k] for one in made) for k in range(len(written)))

    def _cost(self, request: Request) -> Cost:
        n = sum(t.numel for t in request.args[self.lists[0]])
        moved = {name: sum(t.nbytes for t in request.args[name]) for name in self.lists}
        flop, functions = self.work
        return Cost(flop * n, functions * n, sum(moved.values()), sum(moved[name] for name in self.written_lists))

    def _dims(self, request: Request) -> dict[str, int]:
        first = request.args[self.lists[0]]
        return {"tensors": len(first), "elements": sum(t.numel for t in first)}

    # ------------------------------------------------------------ cases

    def make(
        self, generator: Generator, dtype: torch.dtype, shapes: Sequence[tuple[int, ...]], *, kind: str = "normal",
        state_dtype: torch.dtype | None = None, fresh: bool = False, **numbers: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """A call's arguments: lists of these shapes, the usual numbers but for those given."""
        numbers = {**self.usual, **(self.resets if fresh else {}), **numbers}
        made: dict[str, Any] = {}
        for name in self.lists:
            of = self._list(name)
            own = (state_dtype or dtype) if of.state else dtype
            empty = of.unless and numbers[of.unless] == 0
            made[name] = [] if empty else [self.draws[name](generator, own, shape, kind) for shape in shapes]
            if fresh and of.state:
                made[name] = [torch.full_like(t, self.fresh) for t in made[name]]
        return {name: made[name] if name in made else numbers[name] for name in self.arguments}

    def case(self, label: str, *shapes: tuple[int, ...], layouts: bool = False, **how: Any) -> Case:
        return Case(label, lambda g, d: self.make(g, d, shapes, **how), layouts=layouts)

    def _cases(self) -> Iterator[Case]:
        for n in LENGTHS:
            yield self.case(f"N={n}", (n,), (3, n), layouts=n in (17, 128))
        for kind in KINDS:
            yield self.case(kind, (33,), (5, 103), kind=kind)
        yield self.case("no tensors")
        yield self.case("three tensors", (7,), (4, 9, 5), (2, 3, 4, 5), layouts=True)
        yield self.case("some without elements", (0,), (5, 3), (2, 0, 3), (41,))
        yield self.case("first step", (67,), (3, 5), fresh=True)
        if self.states:
            yield self.case("float32 state", (67,), (5, 40), state_dtype=F32)
        for name, numbers in self.tries.items():
            yield self.case(name, (67,), (5,), **numbers)
        yield self.case("several threads", (1031, 67), (5,), (700, 41), (3, 3), **self.many)
        yield self.case("many tensors", *((i // 3 % 7, 9) for i in range(42)), (1031,))

    def _device_cases(self) -> tuple[Case, ...]:
        own = F32 if self.states else None
        return (
            self.case("hundreds of tensors", *((16 * i, 40) for i in range(1, 300)), (7,), (3, 5)),
            self.case("large tensors, float32 state", (2048, 1024), (4099, 513), state_dtype=own),
        )

    def _bench(self, sizes: Mapping[str, Sequence[tuple[int, ...]]]) -> tuple[Case, ...]:
        return tuple(
            Case(name, lambda g, d, s=shapes: self.make(g, d, s), dtypes=(F32,)) for name, shapes in sizes.items()
        )

    # ------------------------------------------------------------ known-wrong versions

    def mutant(self, name: str, change: Callable[..., Tensors64], why: str) -> Mutant:
        """One that steps each place by ``change(*tensors, **numbers)`` in float64."""

        def run(*args: Any) -> None:
            lists, numbers = self.split(args)
            written = [n for n in self.written_lists if n in lists]
            for place in range(len(args[0])):
                tensors = [ts[place] for ts in lists.values()]
                after = change(*(t.double() for t in tensors), **numbers)
                for target, value in zip(written, after, strict=True):
                    lists[target][place].copy_(value)

        return Mutant(name, run, why)

    def mutant_of_numbers(self, name: str, why: str, **changed: Callable[[Numbers], Any]) -> Mutant:
        """One that takes other numbers for those it was given."""
        return self.mutant(
            name, lambda *ts, **ns: self.step(*ts, **{**ns, **{n: f(ns) for n, f in changed.items()}}), why
        )

    def mutants(self) -> tuple[Mutant, ...]:
        """Those that every step has."""
        made = [
            self.mutant("nothing done", lambda *ts, **ns: self._before(ts), "no step at all"),
            self.mutant("stale tail", self._stale(lambda n: n // VECTOR * VECTOR), "the vector tail is never written"),
            self.mutant("stale end", self._stale(lambda n: max(n - 1, 0)), "the last element is never written"),
            self.mutant("bfloat16 inside", self._narrowed, "what is read is rounded to bfloat16 first"),
            Mutant("last tensor skipped", self._some(slice(None, -1)), "the last tensor of the lists is left out"),
            Mutant("first tensor alone", self._some(slice(1)), "one tensor of the lists is stepped"),
            Mutant("tail of one", self._one_tail, "the vector tail of the second tensor is never written"),
            Mutant("neighbour's gradient", self._aside, "a tensor of no elements moves the others by one"),
        ]
        if self.states:
            made.append(self.mutant("state not written", self._stale_state, "the states stay as they were"))
        return tuple(made)

    def _before(self, tensors: Sequence[Tensor]) -> Tensors64:
        given = self.lists if len(tensors) == len(self.lists) else [n for n in self.lists if not self._list(n).unless]
        return tuple(t for name, t in zip(given, tensors, strict=True) if name in self.written_lists)

    def _stale(self, kept: Callable[[int], int]) -> Callable[..., Tensors64]:
        def change(*tensors: Tensor, **numbers: Any) -> Tensors64:
            after = [t.reshape(-1).clone() for t in self.step(*tensors, **numbers)]
            for new, old in zip(after, self._before(tensors), strict=True):
                new[kept(new.numel()) :] = old.reshape(-1)[kept(new.numel()) :]
            return tuple(t.reshape(tensors[0].shape) for t in after)

        return change

    def _narrowed(self, *tensors: Tensor, **numbers: Any) -> Tensors64:
        first, *rest = tensors
        return self.step(first, *(t.bfloat16().double() for t in rest), **numbers)

    def _stale_state(self, *tensors: Tensor, **numbers: Any) -> Tensors64:
        after, before = self.step(*tensors, **numbers), self._before(tensors)
        return after[0], *before[1:]

    def _stepped(self, args: Sequence[Any]) -> None:
        self.mutant("", self.step, "").run(*args)

    def _some(self, which: slice) -> Callable[..., None]:
        def run(*args: Any) -> None:
            self._stepped([a[which] if name in self.lists else a for name, a in zip(self.arguments, args, strict=True)])

        return run

    def _one_tail(self, *args: Any) -> None:
        lists = self.split(args)[0]
        before = {name: [t.clone() for t in lists[name]] for name in self.written_lists if name in lists}
        self._stepped(args)
        for name, old in before.items():
            now = lists[name]
            if len(now) > 1:
                kept = now[1].numel() // VECTOR * VECTOR
                now[1].reshape(-1)[kept:] = old[1].reshape(-1)[kept:]

    def _aside(self, *args: Any) -> None:
        """Where one tensor has no elements, those behind it are read one place aside, if their shapes allow it."""
        named = dict(zip(self.arguments, args, strict=True))
        read = next(name for name in self.lists if name not in self.written_lists)
        moved = list(named[read])
        for i in range(1, len(moved)):
            if moved[i].shape == moved[i - 1].shape:
                moved[i] = named[read][i - 1]
        self._stepped([moved if name == read else a for name, a in named.items()])

    # ------------------------------------------------------------ the op

    def in_places(self, change: Callable[..., Tensors64]) -> Callable[..., None]:
        """A kernel in Python: ``change(*tensors, **numbers)`` of each place, in float64."""
        run = self.mutant("", change, "").run
        return lambda *args, out=None: run(*args)

    @property
    def schema(self) -> str:
        return f"{self.called}({schema_of(self.arguments)}, str? op_kernel=None) -> ()"

    def op(
        self, contract: Contract, kernels: Sequence[Kernel], *, torch_kernel: Kernel, composite: Callable[..., Any],
        native: Callable[..., Any], mutants: Sequence[Mutant] = (),
    ) -> Op:  # fmt: skip
        """The op: ``kernels`` are the op package's own, ``native`` what torch's optimizer runs unless it is told
        otherwise, ``composite`` the same for every call that the contract accepts."""
        op = Op(
            contract, [*kernels, torch_kernel, python_kernel("reference", self.in_places(self.step))],
            op_package=self.op_package, forward=Pass(self.schema, _nothing, free=self.free),
            composite=composite, native=native, mutants=(*self.mutants(), *mutants),
        )  # fmt: skip
        op.template = self
        return op


def _nothing(*args: Any) -> None:
    """Nothing comes back."""


def launch_lists(function: Callable[..., None], lists: Sequence[Sequence[Tensor]], numbers: Sequence[Any]) -> None:
    """One launch of a C++ function (``simd/step.hpp``) for all tensors of ``lists``, the written ones first:
    ``function(tensors, *numbers, threads, *tensors of each list)``."""
    kernel, threads = choose_threads(function, sum(map(Tensor.numel, lists[0])))
    kernel(len(lists[0]), *numbers, threads, *(t for tensors in lists for t in tensors))
