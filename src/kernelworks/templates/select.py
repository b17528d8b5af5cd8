"""The select template: the first elements of each line in an order, and where they stood.

``NAME(x, ..., dim, ...)`` returns ``values`` and ``indices``, which keep the dimension with as many elements as are
asked for: top-k, sorting. An op package says in ``contract.py`` what only it knows (``Select``); ``simd.cpp`` and
``scalar.cpp`` are a line each (``simd/select.hpp``), and so is ``triton.py`` (``tile/select.py``). What follows from
that is made here.

Of equal elements torch promises no order. So a kernel is right if each index names an element of its value and none
twice (``contract/results.py``). Ours take the first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from kernelworks.build.cpp import library
from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Case, Contract, Cost, Kernel, Mutant, Request
from kernelworks.contract.arguments import Arguments, check_of, errors_of, schema_of
from kernelworks.contract.cases import VALUES, draw
from kernelworks.contract.results import AnyOrder, ChosenIndex, Result, result_dtype
from kernelworks.contract.row_layout import lines
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.selection_mutants import selection_mutants

__all__ = ["LONGEST", "SelectionRequest", "Select", "backward", "triton_forward"]

LONGEST = 4096  # elements of a line that stays in registers on a GPU
MOST_ON_GPU = 256  # elements of a line that are asked for: a network of more takes minutes to compile
MOST = 2**31 - 1  # elements of a line: places are 32 bits of a candidate
FEW = "few values"  # of which there are many equal ones, 0 with either sign among them
ODD_NUMBERS = "nan and inf"  # NaN of either sign, infinities, zeros of either sign, and many equal values
DESCENDING, ASCENDING = "descending", "ascending"
NANOSECONDS, NANOSECONDS_OUT = 0.5, 20.0  # about what an element, and a result, take one thread of a CPU
PAIR = ("values", "indices")


class SelectionRequest(NamedTuple):
    """What an op's arguments ask of a line: how many elements, from which end, and whether they come in order."""

    k: int
    largest: bool
    in_order: bool


# ---------------------------------------------------------------- shapes and gradients


def _shape(x: Any, dim: int, count: int) -> tuple[int, ...]:
    """The results'."""
    shape = tuple(x.shape)
    if shape:
        dim %= len(shape)
        shape = (*shape[:dim], count, *shape[dim + 1 :])
    return shape


def _beside(x: Any, dim: int) -> int:
    """How many lines lie side by side in the results."""
    shape = tuple(x.shape)
    return math.prod(shape[dim % len(shape) + 1 :]) if shape else 1


def backward(grad: Tensor, x: Tensor, indices: Tensor, dim: int, out: Any = None) -> Any:
    """What flows into a value flows on to the element that its index names; nothing to the others."""
    if not x.dim():  # torch 2.11 refuses to scatter into it on a GPU that is to be deterministic
        return grad.clone() if out is None else out.copy_(grad)
    if out is not None:
        return out.zero_().scatter_(dim, indices, grad)
    return torch.zeros(x.shape, dtype=grad.dtype, device=grad.device).scatter(dim, indices, grad)


def triton_forward(launches: Any, selection_of: Callable[..., tuple[SelectionRequest, int]]) -> Callable[..., Any]:
    """The forward of a ``triton.py``, by its ``tile.select.Selection`` and the op's ``selection_of(x, *rest)``."""

    def forward(x: Tensor, *rest: Any, out: Any = None) -> Any:
        want, dim = selection_of(x, *rest)
        shape = _shape(x, dim, want.k)
        values, indices = out or (
            torch.empty(shape, dtype=x.dtype, device=x.device),
            torch.empty(shape, dtype=torch.int64, device=x.device),
        )
        if values.numel():
            launches(values, indices, lines(x, dim), _beside(x, dim), *want)
        return values, indices

    return forward


# ---------------------------------------------------------------- the op template


@dataclass(frozen=True, kw_only=True)
class Select(OpPackage):
    """What only the op package knows of a selection.

    ``op_package`` is the op package's ``__file__``: folder and family name the op. ``function`` is torch's, which knows
    the op's arguments by their names; in float64 it is the definition, too. ``arguments`` has ``x`` first, and
    ``dim``. ``selection_of(x, *rest)`` says what they ask for, and along which dimension; ``x`` may be without data.
    ``result_type`` is the named tuple that torch's function returns. ``order`` names the argument that is true where
    the values come in order; "" where they always do; ``stable`` one that is true where the first of equals has to come
    first. ``make(x, dim, count, descending, in_order)`` gives a
    case's arguments by name; None where the op cannot be asked so.
    """

    formula: str
    source: str
    function: Callable[..., Any]
    result_type: Callable[[Any], Any]
    arguments: Arguments
    selection_of: Callable[..., tuple[SelectionRequest, int]]
    make: Callable[[Tensor, int, int, bool, bool], Mapping[str, Any] | None]
    order: str = ""
    stable: str = ""
    cases: tuple[Case, ...] = ()
    sizes: tuple[tuple[tuple[int, ...], int, torch.dtype], ...] = ()  # that are timed: shape, count, dtype
    device_sizes: tuple[tuple[tuple[int, ...], int, torch.dtype], ...] = ()

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        shape = self._result_shape
        return Contract(
            name=self.name,
            family=self.folder.parent.name,
            formula=self.formula,
            source=self.source,
            outputs=PAIR,
            results={
                "values": Result(shape=shape, relation=AnyOrder("dim", self.order) if self.order else None),
                "indices": Result(torch.int64, shape=shape, relation=ChosenIndex("x", "dim", "values", self.stable)),
            },
            differentiable=("x",),
            check=check_of(self.arguments),
            reference=self.reference,
            bound=lambda args, outputs, dtype: tuple(torch.zeros(o.shape) for o in outputs),
            gradient_bound=lambda args, grads, gradients, dtype: {n: torch.zeros_like(g) for n, g in gradients.items()},
            cost=self._cost,
            dims=self._dims,
            cases=(*self.cases, *self._cases()),
            bench_cases=tuple(self._timed(self.sizes)),
            device_cases=tuple(self._device_cases()),
            device_bench_cases=tuple(self._timed(self.device_sizes)),
            errors=errors_of(self.arguments),
        )

    def _result_shape(self, args: Mapping[str, Any]) -> tuple[int, ...]:
        want, dim = self.selection_of(*(args[name] for name in self.arguments))
        return _shape(args["x"], dim, want.k)

    def reference(self, x: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, ...]:
        if x.dim() == 0:  # torch 2.11's has no gradient of it on a GPU
            return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
        # torch's radix sort on a GPU puts a NaN with a sign at the other end.
        _, indices = self._by_torch(torch.where(x.isnan(), torch.nan, x).detach(), *rest, **named)
        return x.gather(dict(zip(self._options, rest, strict=False), **named).get("dim", -1), indices), indices

    def _by_torch(self, x: Tensor, *rest: Any, **named: Any) -> Any:
        return self.function(x, **dict(zip(self._options, rest, strict=False)), **named)

    @property
    def _options(self) -> tuple[str, ...]:
        """The arguments behind x, which torch's function takes by name."""
        return tuple(self.arguments)[1:]

    def _lines(self, args: Mapping[str, Any]) -> tuple[SelectionRequest, int, int, int]:
        """What is asked for, how many lines there are, of how many elements, and how many lie side by side."""
        x = args["x"]
        want, dim = self.selection_of(*(args[name] for name in self.arguments))
        shape = tuple(x.shape) or (1,)
        dim %= len(shape)
        return want, math.prod((*shape[:dim], *shape[dim + 1 :])), shape[dim], math.prod(shape[dim + 1 :])

    def _cost(self, request: Request) -> Cost:
        if request.pass_ == "backward":
            grad, indices, x = (request.args[name] for name in ("grad_values", "indices", "x"))
            return Cost(0.0, 0.0, grad.nbytes + indices.nbytes, x.nbytes)
        want, count, n, _ = self._lines(request.args)
        x = request.args["x"]
        return Cost(float(count * n), 0.0, x.nbytes, count * min(want.k, n) * (x.dtype.itemsize + 8))

    def _dims(self, request: Request) -> dict[str, int]:
        """Lines, their elements, how many of them are asked for, and how many lines lie side by side."""
        if request.pass_ == "backward":
            x, indices, dim = (request.args[name] for name in ("x", "indices", "dim"))
            shape = tuple(x.shape) or (1,)
            dim %= len(shape)
            count = (tuple(indices.shape) or (1,))[dim]
            lines_ = math.prod((*shape[:dim], *shape[dim + 1 :]))
            return {"M": lines_, "N": shape[dim], "K": count, "inner": math.prod(shape[dim + 1 :])}
        want, count, n, inner = self._lines(request.args)
        return {"M": count, "N": n, "K": want.k, "inner": inner}

    # ------------------------------------------------------------ cases

    def case(
        self, shape: tuple[int, ...], dim: int, count: int, kind: str = "normal", *, descending: bool = True,
        in_order: bool = True, **more: Any,
    ) -> Iterator[Case]:  # fmt: skip
        """A case, where the op can be asked so."""
        if self.make(torch.empty(shape, device="meta"), dim, count, descending, in_order) is None:
            return
        name = f"{kind}, " * (kind != "normal") + "smallest " * (not descending)
        name += f"{count} of {list(shape)}, dim {dim}" + ", any order" * (not in_order)

        def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
            given = self.make(_draw(kind, generator, dtype, shape), dim, count, descending, in_order)
            return dict(cast(Mapping[str, Any], given))

        yield Case(name, make, **more)

    def _cases(self) -> Iterator[Case]:
        for n in LENGTHS:
            counts = (0, 1, n // 2, n) if n in (1, 17, 64) else (8, n) if n < 300 else (8,)
            for count in sorted({min(n, count) for count in counts}):
                yield from self.case((3, n), -1, count, layouts=n in (17, 128) and count == 8)
        for n, count in ((2000, 17), (5000, 50), (5000, 64), (5000, 65), (3000, 700), (4100, 2000)):
            yield from self.case((2, n), -1, count, descending=count % 2 > 0)
        for shape, dim, count, layouts in DOWN:
            yield from self.case(shape, dim, count, layouts=layouts)
        for kind in (*VALUES, FEW, ODD_NUMBERS, ASCENDING, DESCENDING):
            # From a multiple of the vectors on, with a tail; more equal ones than any buffer holds.
            yield from self.case((4, 133), -1, 9, kind, descending=False)
            yield from self.case((2, 1201), -1, 33, kind)
        for kind in (FEW, ODD_NUMBERS, ASCENDING, DESCENDING):
            yield from self.case((2, 3001), -1, 33, kind, descending=False)
            yield from self.case((40, 3), 0, 7, kind)
            yield from self.case((3, 70), -1, 70, kind)
        for shape, count in (((3, 90), 20), ((2, 1500), 1100), ((2, 3000), 10)):
            yield from self.case(shape, -1, count, FEW, descending=count == 20, in_order=False)
        for shape, dim, count in SPLIT_LINES:
            yield from self.case(shape, dim, count, FEW, descending=count == 900, gradients=False)

    def _device_cases(self) -> Iterator[Case]:
        for shape, dim, count in DEVICE:
            yield from self.case(shape, dim, count)
            yield from self.case(shape, dim, count, FEW, descending=False)

    def _timed(self, sizes: Sequence[tuple[tuple[int, ...], int, torch.dtype]]) -> Iterator[Case]:
        for shape, count, dtype in sizes:
            yield from self.case(shape, -1, count, dtypes=(dtype,))

    # ------------------------------------------------------------ the op

    def op(self, contract: Contract, mutants: Sequence[Mutant] = ()) -> Op:
        """The op; ``mutants`` are the op package's own."""
        made, options = schema_of(self.arguments), ", ".join(f"{name}={name}" for name in self._options)
        op = Op(
            contract,
            self._kernels(),
            op_package=self.op_package,
            forward=Pass(f"{self.name}({made}, str? op_kernel=None) -> (Tensor, Tensor)", self._fake),
            backward=Pass(
                f"{self.name}_backward(Tensor grad_values, Tensor x, Tensor indices, int dim, str? op_kernel=None) "
                "-> Tensor",
                lambda grad, x, indices, dim: x.new_empty(x.shape),
                returns=("x",),
                reads={"x": ("grad_values", "indices")},
            ),
            mutants=(*selection_mutants(self.reference, contract, self.selection_of), *mutants),
            composite=lambda x, *rest, **named: self._by_torch(x, *rest, **named),
            result_type=self.result_type,
            passthrough=Passthrough(
                f"function(x, {options})",
                ("x",),
                tuple(f"{n}.__class__ is {kind.schema}" for n, kind in self.arguments.items() if n != "x"),
                {"function": self.function},
            ),
        )  # fmt: skip
        op.template = self
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        kernels = "scalar: simd/scalar_select.hpp, other targets: simd/select.hpp, triton: tile/select.py"
        return {"gradient": "what flows into a value, at the element that its index names", "kernels": kernels}

    def torch_signature(self, op: Op, ours: Callable[..., tuple[Any, ...] | str]) -> TorchSignature:
        """torch's signature; ``ours`` has that of its function."""
        return TorchSignature(op, self.function, ours, {"input": "x"})

    def _fake(self, *args: Any) -> tuple[Tensor, ...]:
        named = dict(zip(self.arguments, args, strict=True))
        results = self.contract.results
        return tuple(
            args[0].new_empty(self._result_shape(named), dtype=result_dtype(results[name], named)) for name in PAIR
        )

    def _kernels(self) -> list[Kernel]:
        def composed(*args: Any, out: Any = None) -> Any:
            return into(tuple(self._by_torch(*args)), out)

        return [
            triton_kernel(self.folder, launches=2, guard=self._decline_on_gpu),
            *(
                replace(op_kernel, prepare=functools.partial(self._prepared, op_kernel))
                for op_kernel in cpp_kernels(
                    self.folder, forward=self._forward, backward=lambda library: backward, bound=True,
                    guard=self._decline_long,
                )
            ),
            python_kernel("torch", composed, backward),
            python_kernel("reference", in_float64(self.reference, self.contract.results_in_order), backward),
        ]  # fmt: skip

    def _decline_long(self, request: Request) -> str | None:
        return f"takes lines of at most {MOST} elements" if _length(request) > MOST else None

    def _decline_on_gpu(self, request: Request) -> str | None:
        if request.pass_ != "backward" and self._lines(request.args)[0].k > MOST_ON_GPU:
            return f"takes up to {MOST_ON_GPU} elements of a line"
        return self._decline_long(request)

    def _launch(self, kernel: Any, args: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[Any, ...], float, Any]:
        """The results' shape, what the C++ function is given beside tensors and threads, about how many nanoseconds one
        thread takes, and the lines."""
        x = args[0]
        want, dim = self.selection_of(*args)
        where = lines(x, dim)
        shape = _shape(x, dim, want.k)
        results = where.outer * where.inner * want.k
        return (
            shape,
            (*where[1:], _beside(x, dim), *want),
            NANOSECONDS * x.numel() + NANOSECONDS_OUT * results,
            where.tensor,
        )

    def _forward(self, library: Any) -> Callable[..., Any]:
        kernel = getattr(library, self.name)

        def forward(*args: Any, out: Any = None) -> Any:
            shape, numbers, nanoseconds, given = self._launch(kernel, args)
            values, indices = _made(shape, given.dtype) if out is None else out
            run, threads = choose_threads(kernel, nanoseconds)
            run(values, indices, given, *numbers, threads)
            return values, indices

        return forward

    def _prepared(self, op_kernel: Kernel, pass_: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """The forward of calls whose lines lie where these do, worked out once; None where a copy is needed."""
        if pass_ != "forward":
            return None
        kernel = getattr(library(cast(Path, op_kernel.source), op_kernel.target), self.name)
        shape, numbers, nanoseconds, given = self._launch(kernel, args)
        if given.data_ptr() != args[0].data_ptr():
            return None
        dtype = given.dtype

        def forward(x: Tensor, *rest: Any, out: Any = None) -> Any:
            values, indices = _made(shape, dtype) if out is None else out
            run, threads = choose_threads(kernel, nanoseconds)
            run(values, indices, x, *numbers, threads)
            return values, indices

        return forward


def _made(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=torch.int64)


def _length(request: Request) -> int:
    """Elements of a line."""
    shape: tuple[int, ...] = request.args["x"].shape
    return shape[request.args["dim"]] if shape else 1


# ---------------------------------------------------------------- cases that all selections share


def _draw(kind: str, generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if kind in (ASCENDING, DESCENDING):  # each vector holds what is above all before
        count = math.prod(shape)
        x = torch.arange(count).reshape(shape).to(dtype) / 4
        return x if kind == ASCENDING else -x
    if kind not in (FEW, ODD_NUMBERS):
        return draw(kind, generator, dtype, *shape)
    x = torch.randint(-2, 3, shape, generator=generator).to(dtype)
    x = torch.where(torch.rand(shape, generator=generator) < 0.5, x, -x)
    if kind == ODD_NUMBERS:
        which = torch.randint(0, 20, shape, generator=generator)
        for number, value in enumerate((torch.nan, torch.inf)):
            odd = torch.full(shape, value, dtype=dtype)
            x = torch.where(which == 2 * number, odd, torch.where(which == 2 * number + 1, -odd, x))
    return x


LENGTHS = (1, 2, 3, 9, 15, 16, 17, 33, 63, 64, 65, 67, 127, 128, 129, 257, 1024, 1031, 4096)
# shape, dimension, how many, whether layouts are tried
DOWN: tuple[tuple[tuple[int, ...], int, int, bool], ...] = (
    ((5, 7), 0, 2, False), ((3, 17, 5), 1, 4, True), ((2, 1, 33), 1, 1, False), ((300, 70), 0, 9, True),
    ((7, 130, 2, 3), -3, 20, False), ((0, 5), 1, 2, False), ((4, 0, 3), 1, 0, False), ((4, 6, 0), 1, 2, False),
    ((), -1, 1, False), ((), 0, 0, False), ((65, 1, 1), 0, 65, False), ((1, 70, 1, 3), 1, 5, False),
    ((2, 3, 4, 40), -1, 6, True), ((9, 5, 6), 2, 6, False), ((1027, 48), -1, 4, False), ((33,), 0, 33, False),
)  # fmt: skip
# Lines that are too few and too long for one thread each.
SPLIT_LINES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((1, 400_001), -1, 40), ((1, 40_003), -1, 900), ((20_003, 5), 0, 12)
)  # fmt: skip
# Rows in a tile, in several, cut into parts; columns.
DEVICE: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((5003, 128), -1, 8), ((1003, 250), -1, 20), ((3001, 1024), -1, 50), ((301, 20_011), -1, 5),
    ((3, 1_000_003), -1, 64), ((64, 300, 129), 1, 10),
)  # fmt: skip
