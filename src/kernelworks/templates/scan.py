"""The scan template: each element of a line becomes what the line comes to up to it.

``NAME(x, dim)``: running sums, running products. An op package says in ``contract.py`` what only it knows (``Scan``),
in ``scan.cpp`` how two runs of neighbours are joined (``simd/scan.hpp``), in ``triton.py`` the same for a tile
(``tile/scan.py``). What follows from that is made here.

All kernels carry a line in float64 and round each element from there, so the bound is that of a recurrence of float64
steps, whose terms are those of the same scan of magnitudes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Generator, Tensor

from kernelworks.build.cpp import library
from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, Dim, check_of, errors_of, schema_of
from kernelworks.contract.cases import SMOOTH, VALUES, draw, row_cases
from kernelworks.contract.row_layout import lines_along
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.mutants import VECTOR, generic
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["Scan", "triton_backward", "triton_forward"]

BF16, F32 = torch.bfloat16, torch.float32
U32, U64 = UNIT_ROUNDOFF[torch.float32], UNIT_ROUNDOFF[torch.float64]
ARGUMENTS: Arguments = {"x": T("..."), "dim": Dim("x", scalar=True)}
TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "scan.cpp")
NANOSECONDS = 0.4  # about what an element takes one thread of a CPU
LONGEST = 2048  # elements of a line that a mutant goes through one by one

Draw = Callable[[str, Generator, torch.dtype, tuple[int, ...]], Tensor]


# ---------------------------------------------------------------- what kernels on a GPU are called by


def triton_forward(launches: Any) -> Callable[..., Tensor]:
    """The forward of a ``triton.py``, by its ``tile.scan.Scan``."""

    def forward(x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
        if x.numel():
            launches.forward(output, lines_along(x, dim))
        return output

    return forward


def triton_backward(launches: Any) -> Callable[..., Tensor]:
    """The backward of a ``triton.py``, by its ``tile.scan.Scan``."""

    def backward(grad: Tensor, x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
        grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
        if x.numel():
            launches.backward(grad_x, lines_along(grad, dim), lines_along(x, dim))
        return grad_x

    return backward


# ---------------------------------------------------------------- the op template


@dataclass(frozen=True, kw_only=True)
class Scan(OpPackage):
    """What only the op package knows of a scan.

    ``op_package`` is the op package's ``__file__``: folder and family name the op. ``function`` is torch's and ``aten``
    its operator; in float64 it is the definition, too, and of the inputs' magnitudes it says how large the terms are.
    ``join(before, after)`` is what two neighbours come to, and ``none`` what changes nothing: for mutants.
    ``reads_x``: whether the gradient depends on x; without it, it is the same scan from the other end.
    ``draw(kind, generator, dtype, shape)`` makes values that lines of thousands do not carry out of every dtype.
    """

    formula: str
    source: str
    function: Callable[[Tensor, int], Tensor]
    aten: str
    join: Callable[[Tensor, Tensor], Tensor]
    none: float
    flop: float = 1.0
    reads_x: bool = False
    draw: Draw = lambda kind, generator, dtype, shape: draw(kind, generator, dtype, *shape)
    cases: tuple[Case, ...] = ()

    @property
    def arguments(self) -> Arguments:
        return ARGUMENTS

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        return Contract(
            name=self.name, family=self.folder.parent.name, formula=self.formula, source=self.source,
            outputs=("output",), differentiable=("x",), check=check_of(ARGUMENTS), reference=self.reference,
            bound=self._bound, gradient_bound=self._gradient_bound, cost=self._cost, dims=_dims,
            cases=(*self.cases, *self._cases()), errors=errors_of(ARGUMENTS),
            bench_cases=tuple(self._case(shape, dim, dtypes=(dtype,)) for shape, dim, dtype in BENCH),
            device_cases=tuple(self._case(shape, dim) for shape, dim in DEVICE),
            device_bench_cases=tuple(self._case(shape, dim, dtypes=(BF16,)) for shape, dim in DEVICE_BENCH),
        )  # fmt: skip

    def case_of(self, sizes: tuple[int, ...], dtype: torch.dtype, word: str = "") -> Case | None:
        """A case of any sizes: rows and their elements, or what lies outside, along and inside lines; None of
        others."""
        return None if word or len(sizes) not in (2, 3) else self._case(sizes, 1, dtypes=(dtype,))

    def reference(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        return (self.function(x, dim),)

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        x, dim = args["x"], args["dim"]
        return (_off(outputs[0], _steps(x, dim) * self.function(x.abs(), dim), dtype),)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """A gradient's terms are the gradient of magnitudes, as what flows in is one of them. Each has met the steps
        behind it; where it depends on x, also those before it, and a product more a step."""
        dim = args["dim"]
        with torch.enable_grad():
            sizes = args["x"].detach().abs().requires_grad_()
            (terms,) = torch.autograd.grad(self.function(sizes, dim), sizes, grads[0].abs())
        steps = _steps(sizes.detach(), dim)
        if self.reads_x:
            steps = 2 * steps.amax() if steps.numel() else steps
        else:
            steps = steps.flip(dim) if steps.dim() else steps
        return {"x": _off(gradients["x"], steps * terms, dtype)}

    def _cost(self, request: Request) -> Cost:
        x = request.args["x"]
        if request.pass_ == "backward":
            read = request.args["grad_output"].nbytes + self.reads_x * x.nbytes
            return Cost((1 + 3 * self.reads_x) * self.flop * x.numel, 0.0, read, x.nbytes)
        return Cost(self.flop * x.numel, 0.0, x.nbytes, x.nbytes)

    # ------------------------------------------------------------ cases

    def _given(
        self, generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str, dim: int = -1
    ) -> dict[str, Any]:
        return {"x": self.draw(kind, generator, dtype, shape), "dim": dim}

    def _case(self, shape: tuple[int, ...], dim: int, kind: str = "normal", **more: Any) -> Case:
        name = f"{kind}, " * (kind != "normal") + f"dim {dim} of {list(shape)}"
        return Case(name, lambda g, d: self._given(g, d, shape, kind, dim), **more)

    def _cases(self) -> Iterator[Case]:
        yield from row_cases(self._given)
        for shape, dim, layouts in DOWN:
            yield self._case(shape, dim, layouts=layouts)
        for kind in VALUES:
            if kind != "normal":
                yield self._case((40, 19), 0, kind, gradients=kind in SMOOTH)
        if self.reads_x:
            for places in ((0,), (7,), (7, 20), (32,), (31, 32)):
                yield Case(f"zeros at {list(places)}", functools.partial(self._zeros, places))
        for shape, dim in SPLIT_CASES:
            yield self._case(shape, dim, dtypes=(F32, BF16), gradients=shape[-1] < 10)

    def _zeros(self, places: tuple[int, ...], generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        """Lines without a zero, with one, and with several: what a gradient is divided by may not be one of them."""
        x = self.draw("normal", generator, dtype, (3, 33))
        x[1, list(places)] = 0.0
        x[2, places[0]] = -0.0
        return {"x": x, "dim": -1}

    # ------------------------------------------------------------ the op

    def op(self, contract: Contract, mutants: Sequence[Mutant] = ()) -> Op:
        """The op; ``mutants`` are the op package's own."""
        made = schema_of(ARGUMENTS)
        forward = Pass(f"{self.name}({made}, str? op_kernel=None) -> Tensor", lambda x, dim: x.new_empty(x.shape))
        backward = Pass(
            f"{self.name}_backward(Tensor grad_output, {made}, str? op_kernel=None) -> Tensor",
            lambda grad, x, dim: x.new_empty(x.shape),
            returns=("x",),
            reads={"x": ("grad_output", "x") if self.reads_x else ("grad_output",)},
        )
        op = Op(
            contract,
            [
                triton_kernel(self.folder, launches=2),
                *(
                    replace(op_kernel, prepare=functools.partial(self._prepared, op_kernel))
                    for op_kernel in cpp_kernels(
                        self.folder, forward=self._forward, backward=self._backward, targets=TARGETS, bound=True
                    )
                ),
                *(
                    python_kernels(contract, forward, backward, self.function, lambda: op)
                    if self.reads_x
                    else self._python_kernels()
                ),
            ],
            op_package=self.op_package,
            forward=forward,
            backward=backward,
            composite=lambda x, dim: self.function(x, dim),
            aten=lambda x, dim: aten(self.aten, x, dim),
            passthrough=Passthrough("function(x, dim)", ("x",), ("dim.__class__ is int",), {"function": self.function}),
            mutants=(*self._mutants(), *mutants),
        )
        op.template = self
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        gradient = (
            "runs back over the line, from what stands before each element" if self.reads_x else "the same scan, back"
        )
        kernels = "scalar, avx2, avx512: scan.cpp in simd/scan.hpp, triton: tile/scan.py"
        return {"gradient": gradient, "torch's operators": f"{self.aten}(x, dim)", "kernels": kernels}

    def torch_signature(self, op: Op) -> TorchSignature:
        """torch's signature, of a function with the arguments that ``torch.cumsum`` has."""
        return TorchSignature(op, self.function, _ours, {"input": "x"})

    # ------------------------------------------------------------ launches

    def _forward(self, kernels: Any) -> Callable[..., Tensor]:
        return _scan(getattr(kernels, self.name), backwards=False)

    def _backward(self, kernels: Any) -> Callable[..., Tensor]:
        if not self.reads_x:
            back = _scan(getattr(kernels, self.name), backwards=True)
            return lambda grad, x, dim, out=None: back(grad, dim, out)
        kernel = getattr(kernels, f"{self.name}_backward")

        def backward(grad: Tensor, x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
            grad_x = torch.empty(x.shape, dtype=x.dtype) if out is None else out
            run, threads = choose_threads(kernel, 8 * NANOSECONDS * x.numel())
            flow, of = lines_along(grad, dim), lines_along(x, dim)
            run(grad_x, *of, flow.tensor, flow.outer_stride, flow.stride, threads)
            return grad_x

        return backward

    def _python_kernels(self) -> list[Kernel]:
        """``torch`` and ``reference`` of a gradient that does not depend on x, which then is not at hand."""

        def back(compute: torch.dtype | None, grad: Tensor, x: Tensor, dim: int, out: Any = None) -> Any:
            flow = grad if compute is None else grad.to(compute)
            if flow.dim():
                flow = self.function(flow.flip(dim), dim).flip(dim)
            return into(flow.to(grad.dtype), out)

        return [
            python_kernel(
                "torch", lambda x, dim, out=None: into(self.function(x, dim), out), functools.partial(back, None)
            ),
            python_kernel("reference", in_float64(self.reference), functools.partial(back, torch.float64)),
        ]

    def _prepared(self, op_kernel: Kernel, pass_: str, args: tuple[Any, ...]) -> Callable[..., Tensor] | None:
        """The forward of calls whose lines lie where these do, worked out once; None where a copy is needed."""
        if pass_ != "forward":
            return None
        x, dim = args
        given, *where = lines_along(x, dim)
        if given.data_ptr() != x.data_ptr():
            return None
        kernel = getattr(library(cast(Path, op_kernel.source), op_kernel.target), self.name)
        shape, dtype, nanoseconds, empty = x.shape, x.dtype, NANOSECONDS * x.numel(), torch.empty

        def forward(x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
            output = empty(shape, dtype=dtype) if out is None else out
            run, threads = choose_threads(kernel, nanoseconds)
            run(output, x, *where, False, threads)
            return output

        return forward

    # ------------------------------------------------------------ mutants

    def _mutants(self) -> Iterator[Mutant]:
        """What any scan gets wrong."""
        yield from generic(self.reference, ("x",), ("x", "dim"))
        right = in_float64(self.reference)

        def of(how: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
            """``how`` of x in float64 and a dimension that there is, rounded once."""

            def run(x: Tensor, dim: int) -> Tensor:
                return how(x.double(), dim).to(x.dtype) if x.dim() and x.numel() else right(x, dim)

            return run

        def pieces(length: int, carry: Callable[[Tensor, Tensor, int], Tensor]) -> Callable[..., Tensor]:
            """Scanned piece by piece; ``carry(carry, piece, dim)`` is what the next one starts from."""

            def run(x: Tensor, dim: int) -> Tensor:
                before = torch.full_like(x.narrow(dim, 0, 1), self.none)
                made = []
                for piece in x.split(length, dim):
                    made.append(self.join(before, self.function(piece, dim)))
                    before = carry(before, piece, dim)
                return torch.cat(made, dim)

            return of(run)

        def end(piece: Tensor, dim: int) -> Tensor:
            return self.function(piece, dim).narrow(dim, -1, 1)

        def narrow(dtype: torch.dtype, length: int) -> Callable[..., Tensor]:
            return pieces(length, lambda carry, piece, dim: self.join(carry, end(piece, dim)).to(dtype).double())

        def exclusive(x: Tensor, dim: int) -> Tensor:
            first = torch.full_like(x.narrow(dim, 0, 1), self.none)
            return torch.cat((first, self.function(x, dim).narrow(dim, 0, x.shape[dim] - 1)), dim)

        def one_by_one(x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
            """One element after the other; long lines would take long here, and are scanned as they should be."""
            if not x.dim() or not x.numel() or x.shape[dim] > LONGEST:
                return cast(Tensor, right(x, dim))
            parts = x.unbind(dim)
            made = [parts[0].to(dtype)]
            for part in parts[1:]:
                made.append(self.join(made[-1], part.to(dtype)))
            return torch.stack(made, dim).to(x.dtype)

        for length in (VECTOR, 1024):
            lost = pieces(length, lambda carry, piece, dim: torch.full_like(carry, self.none))
            yield Mutant(f"carry lost after {length}", lost, f"each {length} elements start anew")
            first = pieces(length, lambda carry, piece, dim: self.join(carry, piece.narrow(dim, 0, 1)))
            yield Mutant(f"first of {length}", first, f"of {length} elements the first alone is carried on")
            last = pieces(length, lambda carry, piece, dim: end(piece, dim))
            yield Mutant(f"carry of one piece of {length}", last, "only the piece before is carried on")
        for dtype in (BF16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            yield Mutant(f"{name} carry", narrow(dtype, VECTOR), f"what is carried on is rounded to {name}")
        yield Mutant("float32 carry", lambda x, dim: one_by_one(x, dim, F32), "one element after the other in float32")
        yield Mutant("exclusive", of(exclusive), "what stands before an element, without it")
        yield Mutant("reversed", of(lambda x, dim: self.function(x.flip(dim), dim).flip(dim)), "from the last on")
        yield Mutant("first dimension", lambda x, dim: right(x, 0), "always along the first dimension")
        yield Mutant("last dimension", lambda x, dim: right(x, -1), "always along the last dimension")


def _steps(x: Tensor, dim: int) -> Tensor:
    """How many steps have led to each element of a line, itself one of them; it broadcasts over x."""
    if not x.dim():
        return torch.ones((), dtype=torch.float64)
    dim %= x.dim()
    count = torch.arange(1, x.shape[dim] + 1, dtype=torch.float64, device=x.device)
    return count.reshape(*(1,) * dim, -1, *(1,) * (x.dim() - 1 - dim))


def _off(value: Tensor, terms: Tensor, dtype: torch.dtype) -> Tensor:
    """How far a value may be off: a rounding of float64 for each step of its terms, and one in the reference; one to
    float32, and one to the dtype."""
    off = rounding(value, dtype) + 2 * U64 * terms
    return off if dtype == F32 else off + U32 * value.abs() + 2.0**-150


def _scan(kernel: Any, *, backwards: bool) -> Callable[..., Tensor]:
    """The launch of a scan of x's dtype."""

    def run(x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
        output = torch.empty(x.shape, dtype=x.dtype) if out is None else out
        call, threads = choose_threads(kernel, NANOSECONDS * x.numel())
        call(output, *lines_along(x, dim), backwards, threads)
        return output

    return run


def _dims(request: Request) -> dict[str, int]:
    """Lines, their elements, and how many lines lie side by side."""
    shape, dim = tuple(request.args["x"].shape) or (1,), request.args["dim"]
    dim %= len(shape)
    inner = math.prod(shape[dim + 1 :])
    return {"M": math.prod(shape[:dim]) * inner, "N": shape[dim], "inner": inner}


# ---------------------------------------------------------------- torch's signatures


def _ours(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> tuple[Any, ...] | str:
    if dtype is not None and dtype != input.dtype:
        return "dtype asks for another result than the input's"
    return input, dim


# ---------------------------------------------------------------- cases that all scans share

# shape, dimension, whether layouts are tried
DOWN: tuple[tuple[tuple[int, ...], int, bool], ...] = (
    ((5, 7), 0, False), ((3, 17, 5), 1, True), ((2, 1, 33), 1, False), ((300, 70), 0, True),
    ((7, 130, 2, 3), -3, False), ((0, 5), 0, False), ((4, 0, 3), 1, False), ((2, 9001), 1, False),
    ((2, 4500, 3), 1, False), ((66, 2050), 0, False), ((1031,), 0, False), ((6, 50, 40), 0, True), ((), -1, False),
    ((), 0, False), ((65, 1, 1), 0, False), ((1, 70, 1, 3), 1, False), ((3, 33, 1), 1, True),
)  # fmt: skip
# Lines that are too few and too long for one thread each.
SPLIT_CASES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((3, 200_001), -1), ((40_003, 5), 0), ((2, 10_007, 7), 1), ((200_003,), 0)
)  # fmt: skip
# A line in a tile, in several, cut into parts; the same down columns.
DEVICE: tuple[tuple[tuple[int, ...], int], ...] = (
    ((5003, 200), -1), ((3001, 1024), -1), ((301, 20_011), -1), ((3, 1_000_003), -1), ((64, 300, 129), 1),
    ((100_003, 130), 0), ((5000, 2051), 0),
)  # fmt: skip
# On a CPU beyond its caches either way, one long line, and one that only its host time limits; on a GPU the same.
BENCH: tuple[tuple[tuple[int, ...], int, torch.dtype], ...] = (
    ((2048, 4096), -1, F32), ((2048, 4096), 0, F32), ((1, 4_000_000), -1, F32), ((2048, 4096), -1, BF16),
    ((1, 1024), -1, F32),
)  # fmt: skip
DEVICE_BENCH: tuple[tuple[tuple[int, ...], int], ...] = (
    ((8192, 4096), -1), ((8192, 4096), 0), ((64, 1_000_000), -1), ((16, 1024), -1)
)  # fmt: skip
