"""The collective template: what the ranks of a process group compute together of a tensor that each of them has.

``NAME(x, [op,] group)`` returns a new tensor, as torch's functional collectives do; ``out=x`` is the one in place. An
op package says in ``contract.py`` what only it knows (``Collective``) and in ``collective.cpp`` how ranks of one
host do it (``simd/ranks.hpp``). What follows from that is made here: the contract for the process alone and for N
processes, its cases, its kernels, what it can get wrong.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import as_float64, cpp_kernels, into, python_kernel
from kernelworks.contract import FLOATS, UNIT_ROUNDOFF, Case, Contract, Cost, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, Word, check_of, errors_of, schema_of
from kernelworks.contract.cases import VALUES, draw
from kernelworks.contract.ranks import SELF_GROUP, CollectiveContract, Group, Ranks, count_ranks, group_of, name_of
from kernelworks.contract.results import EqualAcrossRanks, Result
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.op import Op, Pass
from kernelworks.templates.mutants import VECTOR, shift_elements, stale_end
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.rank_segment import segment_of

__all__ = ["REDUCTIONS", "Collective"]

F32, I64 = torch.float32, torch.int64
U32 = UNIT_ROUNDOFF[F32]
DTYPES = (*FLOATS, I64)
COUNTS = (2, 3)  # processes that each case is verified on
PARTS = 6  # which they all divide
TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "collective.cpp")

# How two ranks' elements become one, by the word for it.
REDUCTIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add, "max": torch.maximum, "min": torch.minimum,
}  # fmt: skip

CallArguments = Mapping[str, Any]
Definition = Callable[[Sequence[Tensor], CallArguments], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Collective(OpPackage):
    """What only the op package knows of a collective.

    ``definition(tensors, call)`` gives each rank's result of all ranks' tensors, in float64 (integers as they are);
    ``call`` are the other arguments by name. ``shape(shape, ranks)`` is the result's. ``operator(x, call, group)`` is
    torch's functional operator, where ``group`` is a name. ``reduces``: whether elements of ranks become one, which
    ``op`` says how; else they are moved, and nothing is rounded. ``equal``: whether all ranks hold the same result.
    ``x`` are the dimensions of a rank's tensor: "N ..." if the first one must be there. ``divided``: whether ranks
    divide it among them, so that it must be a multiple of their number.
    ``moved(numel, ranks)`` counts the elements of others that a rank must read.
    """

    formula: str
    source: str
    definition: Definition
    operator: Callable[[Tensor, CallArguments, str], Tensor]
    shape: Callable[[Sequence[int], int], tuple[int, ...]]
    reduces: bool
    equal: bool
    moved: Callable[[int, int], float]
    x: str = "..."
    divided: bool = False
    cases: tuple[Case, ...] = ()

    @functools.cached_property
    def arguments(self) -> Arguments:
        word = {"op": Word(*REDUCTIONS)} if self.reduces else {}
        return {"x": T(self.x, dtypes=DTYPES), **word, "group": Group()}

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> CollectiveContract:
        return CollectiveContract(
            name=self.name, family=self.folder.parent.name, formula=self.formula, source=self.source,
            outputs=("output",), differentiable=(), check=self._check,
            reference=lambda **call: self._reference([call])[0], bound=self._bound_alone, cost=self._cost,
            dims=lambda request: {"N": request.args["x"].numel},
            bucket=lambda request: {"ranks": count_ranks(request.args["group"])},
            results={"output": Result("x", relation=EqualAcrossRanks() if self.equal else None)},
            cases=(*self._cases(), *self.cases), errors=errors_of(self.arguments),
            bench_cases=tuple(self._case(f"N={n}", (n,), dtypes=(F32,)) for n in (256, 16384, 4194304)),
            ranks=Ranks(COUNTS, self._reference, self._bound),
        )  # fmt: skip

    def _check(self, **call: Any) -> None:
        check_of(self.arguments)(**call)
        self._check_parts(call["x"], count_ranks(call["group"]))

    def refuse_gradient(self, x: Any) -> None:
        """For the public function, which asks it of each call: a call of a known signature is not checked again."""
        if torch.is_grad_enabled() and getattr(x, "requires_grad", False):
            raise ValueError(f"{self.name} has no gradient, which x asks for; pass x.detach()")

    def _check_parts(self, x: Tensor, ranks: int) -> None:
        if self.divided and x.shape[0] % ranks:
            raise ValueError(f"x must have a multiple of {ranks} rows, a part for each rank, got {list(x.shape)}")

    def _reference(self, calls: Sequence[CallArguments]) -> list[tuple[Tensor, ...]]:
        made = self.definition([as_float64(call["x"]) for call in calls], calls[0])
        return [(t.clone(),) for t in made]

    def _bound(
        self, calls: Sequence[CallArguments], outputs: Sequence[tuple[Tensor, ...]], dtype: torch.dtype
    ) -> list[tuple[Tensor, ...]]:
        """A sum of n ranks in float32 meets n - 1 roundings, each at most of the sum of magnitudes, and in 16 bits one
        more. All else is exact."""
        off = [torch.zeros(t.shape, dtype=torch.float64) for (t,) in outputs]
        if self.reduces and calls[0]["op"] == "sum" and len(calls) > 1 and outputs[0][0].is_floating_point():
            terms = self.definition([call["x"].abs() for call in calls], calls[0])
            off = [(len(calls) - 1) * U32 * t for t in terms]
            if dtype != F32:
                off = [o + rounding(t, dtype) for o, (t,) in zip(off, outputs, strict=True)]
        return [(o,) for o in off]

    def _bound_alone(self, args: CallArguments, outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        return tuple(self._bound([args], [outputs], dtype)[0])

    def _cost(self, request: Request) -> Cost:
        x, ranks = request.args["x"], count_ranks(request.args["group"])
        made = 1
        for size in self.shape(x.shape, ranks):
            made *= size
        flop = (ranks - 1.0) * made if self.reduces else 0.0
        return Cost(flop, 0.0, x.nbytes + self.moved(x.numel, ranks) * x.dtype.itemsize, made * x.dtype.itemsize)

    # ------------------------------------------------------------ cases

    def make(
        self, generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], *, kind: str = "normal",
        integers: bool = False, **call: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """One rank's arguments, of the process alone; the first dimension is one that the tried numbers of ranks
        divide, if it must be."""
        if self.divided:
            shape = (-(-shape[0] // PARTS) * PARTS, *shape[1:])
        x = draw(kind, generator, dtype, *shape)
        if integers:  # whose sums wrap
            x = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator)
        return {"x": x, **({"op": call.get("op", "sum")} if self.reduces else {}), "group": SELF_GROUP}

    def _case(
        self, name: str, shape: tuple[int, ...], *, layouts: bool = False, dtypes: tuple[torch.dtype, ...] = FLOATS,
        **how: Any,
    ) -> Case:  # fmt: skip
        return Case(name, lambda g, d: self.make(g, d, shape, **how), layouts=layouts, dtypes=dtypes)

    def _cases(self) -> Iterator[Case]:
        for n in LENGTHS:
            yield self._case(f"N={n}", (n,), layouts=n == 129)
        if self.x == "...":
            yield self._case("a scalar", ())
        yield self._case("three dimensions", (3, 4, 5), layouts=True)
        yield self._case("no elements", (0, 5))
        yield self._case("two chunks", (9, 16411))
        yield self._case("many chunks", (11, 65537), dtypes=(F32,))
        for kind in VALUES:
            if kind != "normal":
                yield self._case(kind, (5, 103), kind=kind)
        for name, shape in (("integers", (7, 19)), ("many integers", (3, 20011))):
            yield self._case(name, shape, integers=True, dtypes=(F32,))
            for word in ("max", "min") if self.reduces else ():
                yield self._case(f"{word} of {name}", shape, integers=True, dtypes=(F32,), op=word)
        for word in ("max", "min") if self.reduces else ():
            yield self._case(word, (5, 103), op=word, layouts=True)
            yield self._case(f"{word} in chunks", (9, 16411), op=word)

    # ------------------------------------------------------------ the op

    def op(self, contract: Contract, mutants: Sequence[Mutant] = ()) -> Op:
        """The op; ``mutants`` are the op package's own."""
        schema = f"{self.name}({schema_of(self.arguments)}, str? op_kernel=None) -> Tensor"
        op = Op(
            contract,
            [
                *cpp_kernels(self.folder, forward=self._forward, targets=TARGETS, guard=_decline),
                python_kernel("torch", lambda *args, out=None: into(self._torch(*args), out)),
                python_kernel("reference", self._exact),
            ],
            op_package=self.op_package, forward=Pass(schema, self._fake), composite=self._torch,
            mutants=(*self._mutants(), *mutants),
        )  # fmt: skip
        op.template = self
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        return {
            "ranks": f"verified on {' and '.join(map(str, COUNTS))} processes",
            "gradient": "none",
            "kernels": "scalar, avx2, avx512: collective.cpp on simd/ranks.hpp, for ranks of one host",
        }

    def _named(self, args: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.arguments, args, strict=True))

    def _fake(self, *args: Any) -> Tensor:
        call = self._named(args)
        x: Tensor = call["x"]
        return x.new_empty(self.shape(x.shape, count_ranks(call["group"])))

    def _forward(self, library: Any, *args: Any, out: Tensor | None = None) -> Tensor:
        call = self._named(args)
        x: Tensor = call["x"].contiguous()
        segment = segment_of(call["group"])
        if (
            segment is None
        ):  # what a process computes of its own is what it has; no loop of torch's, after a fork it hangs
            output = torch.empty(x.shape, dtype=x.dtype) if out is None else out
            ctypes.memmove(output.data_ptr(), x.data_ptr(), x.nbytes)
            return output
        self._check_parts(x, segment.ranks)  # a plan may be older than the group
        output = torch.empty(self.shape(x.shape, segment.ranks), dtype=x.dtype) if out is None else out
        words = [call["op"]] if self.reduces else []
        function = getattr(library, "_".join([self.name, *words]))
        said = f"{self.name}({', '.join([f'{str(x.dtype)[6:]}{list(x.shape)}', *words])})"
        segment.run(function, said, output, x)
        return output

    def _torch(self, *args: Any) -> Tensor:
        """What torch's functional collective gives."""
        call = self._named(args)
        x, group = call["x"].contiguous(), call["group"]
        if group == SELF_GROUP:
            return x.clone()  # type: ignore[no-any-return]
        made = self.operator(x, call, name_of(group_of(group)))
        return torch.ops._c10d_functional.wait_tensor(made)  # type: ignore[no-any-return]

    def _exact(self, *args: Any, out: Any = None) -> Any:
        """The definition, of what torch gathers from all ranks."""
        call, rank = self._named(args), 0
        tensors = [call["x"]]
        if call["group"] != SELF_GROUP:
            group = group_of(call["group"])
            rank, tensors = group.rank(), [torch.empty_like(call["x"].contiguous()) for _ in range(group.size())]
            torch.distributed.all_gather(tensors, call["x"].contiguous(), group)
        made = self._reference([{**call, "x": x} for x in tensors])[rank][0]
        return into(made.to(call["x"].dtype), out)

    # ------------------------------------------------------------ known-wrong versions

    def _mutants(self) -> Iterator[Mutant]:
        """What any collective gets wrong: each takes all ranks' tensors and gives all ranks' results."""

        def right(xs: Sequence[Tensor], call: CallArguments) -> list[Tensor]:
            return [t.to(xs[0].dtype) for (t,) in self._reference([{**call, "x": x} for x in xs])]

        def mutant(
            name: str, change: Callable[[Sequence[Tensor], CallArguments], Sequence[Tensor]], why: str
        ) -> Mutant:
            def run(xs: Sequence[Tensor], *args: Any) -> list[Tensor]:
                return list(change(xs, dict(zip(tuple(self.arguments)[1:], args, strict=True))))

            return Mutant(name, run, why)

        def after(change: Callable[[Tensor], Tensor]) -> Callable[[Sequence[Tensor], CallArguments], Sequence[Tensor]]:
            return lambda xs, call: [change(t) for t in right(xs, call)]

        def stale(xs: Sequence[Tensor], call: CallArguments) -> Sequence[Tensor]:
            return [*right(xs, call)[:-1], torch.zeros_like(right(xs, call)[-1])]

        yield mutant("stale tail", after(_stale_tail), "the vector tail is never written")
        yield mutant("stale end", after(stale_end), "the last element is never written")
        yield mutant("one aside", after(shift_elements), "what belongs to one element is written to its neighbour")
        yield mutant("NaN swallowed", after(lambda t: t.nan_to_num(0.0)), "NaN becomes 0")
        yield mutant("zeros", after(torch.zeros_like), "nothing is written")
        yield mutant("bfloat16 inside", lambda xs, c: right([_narrow(x) for x in xs], c), "rounded to bfloat16 first")
        yield mutant("float32 inside", lambda xs, c: right([_as_float(x) for x in xs], c), "integers as float32")
        yield mutant("last rank stale", stale, "the last rank's result is never written")
        yield mutant("first for last", lambda xs, c: right([*xs[:-1], xs[0]], c), "the last rank's is never read")
        yield mutant("last for first", lambda xs, c: right([xs[-1], *xs[1:]], c), "the first rank's is never read")
        yield mutant("own for all", lambda xs, c: [right([x] * len(xs), c)[i] for i, x in enumerate(xs)],
                     "each rank reads its own alone")  # fmt: skip
        if not self.reduces:
            yield mutant("ranks reversed", lambda xs, c: right(xs[::-1], c), "the ranks in the other order")
            return
        yield mutant("one word", lambda xs, c: right(xs, {**c, "op": "sum"}), "all words are taken for a sum")
        yield mutant("max for min", lambda xs, c: right(xs, {**c, "op": "max" if c["op"] == "min" else c["op"]}),
                     "the largest for the smallest")  # fmt: skip
        yield mutant("16 bits between", self._rounded_between, "each partial result is rounded to bfloat16")
        if self.equal:
            yield mutant("own rank first", self._own_first, "each rank adds in an order of its own: other bits")

    def _joined(self, xs: Sequence[Tensor], call: CallArguments, between: Callable[[Tensor], Tensor]) -> Tensor:
        made = xs[0]
        for x in xs[1:]:
            made = between(REDUCTIONS[call["op"]](made, x))
        return made

    def _rounded_between(self, xs: Sequence[Tensor], call: CallArguments) -> list[Tensor]:
        """The reduction with partial results in bfloat16, handed out as the op hands it out."""
        made = self._joined(xs, call, _narrow)
        alike = {**call, "op": "max"}  # of equal tensors the largest is any of them
        return [t.to(xs[0].dtype) for (t,) in self._reference([{**alike, "x": made}] * len(xs))]

    def _own_first(self, xs: Sequence[Tensor], call: CallArguments) -> list[Tensor]:
        wide = [x.float() if x.is_floating_point() else x for x in xs]
        orders = [[wide[i], *wide[:i], *wide[i + 1 :]] for i in range(len(xs))]
        return [self._joined(order, call, lambda t: t).to(xs[0].dtype) for order in orders]


# Around the widths of vectors, then what takes one step and what takes two.
LENGTHS = (0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 65, 129, 1031, 8192, 8193, 16385)


def _decline(request: Request) -> str | None:
    return None if hasattr(os, "memfd_create") else "shares memory as Linux does it"


def _stale_tail(y: Tensor) -> Tensor:
    flat = y.reshape(-1).clone()
    if flat.numel() % VECTOR:
        flat[flat.numel() // VECTOR * VECTOR :] = 0
    return flat.reshape(y.shape)


def _narrow(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype) if x.is_floating_point() else x


def _as_float(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.float().to(x.dtype)
