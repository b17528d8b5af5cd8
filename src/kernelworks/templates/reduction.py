"""The reduction template: one output, of which each element is made of a line of the input.

``NAME(x, dim=None, keepdim=False)``: along one dimension, or of all elements with ``dim=None``. An op package says in
``contract.py`` what only it knows (``Reduction``), in ``simd.cpp`` what a part of a line comes to
(``simd/reduction.hpp``), in ``triton.py`` the same for a tile (``tile/reduction.py``). What follows from that is made
here.
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
from kernelworks.contract import Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, Dim, Flag, check_of, errors_of, reduced_sizes, schema_of
from kernelworks.contract.cases import LENGTHS, VALUES, draw, row_cases
from kernelworks.contract.row_layout import lines
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.mutants import VECTOR, shift_elements, stale_end
from kernelworks.templates.op_package import OpPackage

__all__ = ["Reduction", "triton_forward"]

BF16, F32 = torch.bfloat16, torch.float32
LONGEST = 2048  # elements of a line that a mutant adds up one by one
EMPTY = ("a line without elements", lambda: {"x": torch.ones(3, 0)}, ValueError, "dim must have elements to reduce")
FEW = "few values"  # of which there are many equal ones, 0 with either sign among them


# ---------------------------------------------------------------- shapes and gradients


def _shape(x: Any, dim: int | None, keepdim: bool) -> tuple[int, ...]:
    """The output's."""
    shape = tuple(x.shape)
    if dim is None:
        return (1,) * len(shape) if keepdim else ()
    if shape:
        dim %= len(shape)
        shape = (*shape[:dim], *(1,) * keepdim, *shape[dim + 1 :])
    return shape


def _spread(grad: Tensor, x: Tensor, dim: int | None, keepdim: bool, out: Any = None) -> Any:
    """The gradient of a sum: what flows into a line flows on to each of its elements. A view: no kernel is as quick."""
    if dim is not None and not keepdim and x.dim():
        grad = grad.unsqueeze(dim)
    return into(grad.expand(x.shape), out)


def triton_forward(launches: Any, dtype: torch.dtype | None = None) -> Callable[..., Tensor]:
    """The forward of a ``triton.py``, by its ``tile.reduction.Reduction``; ``dtype`` as ``Reduction.dtype`` here."""

    def forward(x: Tensor, dim: int | None, keepdim: bool, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty(_shape(x, dim, keepdim), dtype=dtype or x.dtype, device=x.device)
        if not x.numel():
            return out.zero_()
        launches(out, lines(x, dim, ordered=dtype is not None))
        return out

    return forward


backward = _spread  # of every op package whose gradients are those of a sum


# ---------------------------------------------------------------- the op template


@dataclass(frozen=True, kw_only=True)
class Reduction(OpPackage):
    """What only the op package knows of a reduction.

    ``op_package`` is the op package's ``__file__``: folder and family name the op. ``function`` is torch's and ``aten``
    its operator; in float64 it is the definition, too. ``dtype`` is the output's, where that is not x's: then numbers
    of elements are returned, nothing is differentiable, and an empty line has no result. Otherwise an empty line is 0,
    and gradients are those of a sum. ``error(x, dim)`` is how far a right kernel may be off, in float64, before it
    rounds its result; without it the op is exact. ``flop`` counts one element. ``nanoseconds`` is about what an element
    takes one thread of a CPU, from its caches.
    """

    formula: str
    source: str
    function: Callable[..., Tensor]
    aten: str
    flop: float
    nanoseconds: float
    error: Callable[..., Tensor] | None = None
    dtype: torch.dtype | None = None
    cases: tuple[Case, ...] = ()

    @property
    def arguments(self) -> Arguments:
        return {"x": T("..."), "dim": Dim("x", every=True, empty=self.dtype is None), "keepdim": Flag()}

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        return Contract(
            name=self.name,
            family=self.folder.parent.name,
            formula=self.formula,
            source=self.source,
            outputs=("output",),
            differentiable=("x",) if self.dtype is None else (),
            check=check_of(self.arguments),
            reference=self.reference,
            bound=self._bound,
            gradient_bound=self._gradient_bound if self.dtype is None else None,
            cost=self._cost,
            dims=_dims,
            cases=(*self.cases, *self._cases()),
            bench_cases=tuple(_case(shape, dim, dtypes=(dtype,)) for shape, dim, dtype in BENCH),
            device_cases=tuple(_case(shape, dim) for shape, dim in DEVICE),
            device_bench_cases=tuple(
                _case(shape, dim, dtypes=(BF16,)) for shape, dim in (*DEVICE_BENCH, *(ODD_ROWS if self.dtype else ()))
            ),
            errors=(*errors_of(self.arguments), *((EMPTY,) if self.dtype is not None else ())),
        )

    def case_of(self, sizes: tuple[int, ...], dtype: torch.dtype, word: str = "") -> Case | None:
        """A case of any sizes: rows and their elements, or what lies outside, along and inside lines; None of
        others."""
        return None if word or len(sizes) not in (2, 3) else _case(sizes, 1, dtypes=(dtype,))

    def reference(self, x: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, ...]:
        return (self.function(x, dim, keepdim),)

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        (output,) = outputs
        if self.error is None:
            return (torch.zeros(output.shape),)
        return (rounding(output, dtype) + self.error(args["x"], args["dim"]).reshape(output.shape),)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        return {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}  # values are copied

    def _cost(self, request: Request) -> Cost:
        if request.pass_ == "backward":  # a view of what flows in
            return Cost(0.0, 0.0, request.args["grad_output"].nbytes, 0.0)
        x = request.args["x"]
        written = math.prod(_shape(x, request.args["dim"], True)) * (self.dtype or x.dtype).itemsize
        return Cost(self.flop * x.numel, 0.0, x.nbytes, written)

    # ------------------------------------------------------------ cases

    def _cases(self) -> Iterator[Case]:
        empty = self.dtype is None
        lengths = [n for n in LENGTHS if n or empty]
        for case in row_cases(_given, lengths=lengths, gradient_kinds=VALUES):
            if empty or case.name != "no rows":
                yield case
        for shape, dim, layouts in DOWN:
            if empty or 0 not in reduced_sizes(shape, dim):
                yield _case(shape, dim, layouts=layouts)
        for shape, dim in KEEPDIM_CASES:
            yield _case(shape, dim, keepdim=True)
        for kind in (*VALUES, FEW):
            if kind != "normal":
                yield _case((40, 19), 0, kind)
                yield _case((5, 7, 30), None, kind)
        yield _case((9, 1031), -1, FEW)
        if self.dtype is not None:  # equal elements, and NaN, in several parts of columns
            for kind in (FEW, "nan", "negative_inf", "constant"):
                yield _case((2, 300, 40), 1, kind)
        for shape, dim in SPLIT_CASES:
            yield _case(shape, dim, FEW if self.dtype else "normal", gradients=False)

    # ------------------------------------------------------------ the op

    def op(self, contract: Contract, mutants: Sequence[Mutant] = (), ahead: Sequence[Kernel] = ()) -> Op:
        """The op; ``mutants`` are the op package's own, and so are kernels that come ``ahead`` of the others."""
        made = schema_of(self.arguments)
        back = Pass(
            f"{self.name}_backward(Tensor grad_output, {made}, str? op_kernel=None) -> Tensor",
            lambda grad, x, dim, keepdim: x.new_empty(x.shape),
            returns=("x",),
            reads={"x": ("grad_output",)},
        )
        op = Op(
            contract,
            [*ahead, *self._kernels()],
            op_package=self.op_package,
            forward=Pass(
                f"{self.name}({made}, str? op_kernel=None) -> Tensor",
                lambda x, dim, keepdim: x.new_empty(_shape(x, dim, keepdim), dtype=self.dtype or x.dtype),
            ),
            backward=back if self.dtype is None else None,
            mutants=(*self._mutants(), *(self._of_sums() if self.dtype is None else self._of_numbers()), *mutants),
            composite=lambda x, dim, keepdim: self.function(x, dim, keepdim),
            aten=lambda x, dim, keepdim: aten(self.aten, x, dim if dim is None or self.dtype else (dim,), keepdim),
            passthrough=Passthrough(
                "function(x, dim, keepdim)",
                ("x",),
                ("(dim is None or dim.__class__ is int)", "keepdim.__class__ is bool"),
                {"function": self.function},
            ),
        )
        op.template = self
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        gradient = "what flows into a line, as a view" if self.dtype is None else "none: numbers of elements"
        kernels = "scalar: scalar.cpp, other targets: simd.cpp in simd/reduction.hpp, triton: tile/reduction.py"
        return {"gradient": gradient, "torch's operators": f"{self.aten}(x, dim, keepdim)", "kernels": kernels}

    def torch_signature(self, op: Op) -> TorchSignature:
        """torch's signature, of a function with the arguments that ``torch.sum`` or ``torch.argmax`` has."""
        return TorchSignature(op, self.function, _sums if self.dtype is None else _numbers, {"input": "x"})

    def _kernels(self) -> list[Kernel]:
        gradient = _spread if self.dtype is None else None
        cpp_backward = None if gradient is None else (lambda library: _spread)
        composed = python_kernel("torch", lambda *args, out=None: into(self.function(*args), out), gradient)
        return [
            triton_kernel(self.folder, launches=2, passes=("forward", "backward") if gradient else ("forward",)),
            *(
                replace(op_kernel, prepare=functools.partial(self._prepared, op_kernel))
                for op_kernel in cpp_kernels(self.folder, forward=self._forward, backward=cpp_backward, bound=True)
            ),
            composed,
            python_kernel("reference", in_float64(self.reference), gradient),
        ]

    def _forward(self, library: Any) -> Callable[..., Tensor]:
        kernel, ordered = getattr(library, self.name), self.dtype is not None

        def forward(x: Tensor, dim: int | None, keepdim: bool, out: Tensor | None = None) -> Tensor:
            output = torch.empty(_shape(x, dim, keepdim), dtype=self.dtype or x.dtype) if out is None else out
            if not x.numel():
                return output.zero_()
            run, threads = choose_threads(kernel, self.nanoseconds * x.numel())
            run(output, *lines(x, dim, ordered=ordered), threads)
            return output

        return forward

    def _prepared(self, op_kernel: Kernel, pass_: str, args: tuple[Any, ...]) -> Callable[..., Tensor] | None:
        """The forward of calls whose lines lie where these do, worked out once; None where a copy is needed."""
        if pass_ != "forward" or not args[0].numel():
            return None
        x, dim, keepdim = args
        given, *where = lines(x, dim, ordered=self.dtype is not None)
        if given.data_ptr() != x.data_ptr():
            return None
        kernel = getattr(library(cast(Path, op_kernel.source), op_kernel.target), self.name)
        shape, dtype, nanoseconds = _shape(x, dim, keepdim), self.dtype or x.dtype, self.nanoseconds * x.numel()
        empty = torch.empty

        def forward(x: Tensor, dim: int | None, keepdim: bool, out: Tensor | None = None) -> Tensor:
            output = empty(shape, dtype=dtype) if out is None else out
            run, threads = choose_threads(kernel, nanoseconds)
            run(output, x, *where, threads)
            return output

        return forward

    def _mutants(self) -> Iterator[Mutant]:
        """What any reduction gets wrong."""
        right = in_float64(self.reference)

        def first(x: Tensor, dim: int | None) -> int:
            return 0 if dim is not None else -1

        def change(how: Callable[[Tensor, int | None], tuple[Tensor, int | None]]) -> Callable[..., Any]:
            return lambda x, dim, keepdim: right(*how(x, dim), keepdim)

        def after(how: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
            return lambda *args: how(right(*args))

        def without(begin: int, multiple: int) -> Callable[..., Any]:
            def cut(x: Tensor, dim: int | None) -> tuple[Tensor, int | None]:
                line = x.reshape(-1) if dim is None else x
                n = line.shape[dim or 0]
                length = n // multiple * multiple if multiple > 1 else n - begin
                return (line.narrow(dim or 0, begin, length) if n > multiple else line), dim

            return change(cut)

        yield Mutant("zeros", after(torch.zeros_like), "nothing is written")
        yield Mutant("stale tail", after(stale_end), "the last output is never written")
        yield Mutant("one aside", after(shift_elements), "a line's is another's")
        yield Mutant("first dimension", change(lambda x, dim: (x, first(x, dim))), "always along the first dimension")
        yield Mutant("last dimension", change(lambda x, dim: (x, -1)), "always along the last dimension")
        yield Mutant("off by one tile", without(0, VECTOR), "what is left of a line behind its tiles is left out")
        yield Mutant("first left out", without(1, 1), "a line begins one element late")
        yield Mutant(
            "NaN ignored", change(lambda x, dim: (x.nan_to_num(-torch.inf, torch.inf, -torch.inf), dim)), "NaN is -inf"
        )
        yield Mutant("dimension kept", lambda x, dim, keepdim: right(x, dim, True), "keepdim whatever is asked")

    def _of_sums(self) -> Iterator[Mutant]:
        """What sums get wrong."""
        right = in_float64(self.reference)

        def one_by_one(x: Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None = None) -> Tensor:
            """One element after the other; long lines would take long here, and are summed as they should be."""
            line = x.reshape(-1) if dim is None or not x.dim() else x.movedim(dim, 0)
            whole: Tensor = right(x, dim, keepdim)
            if len(line) > LONGEST:
                return whole
            total = torch.zeros(line.shape[1:], dtype=dtype or x.dtype)
            for part in line:
                total = total + part.to(total.dtype)
            return total.to(x.dtype).reshape(whole.shape)

        def mean(x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
            return torch.mean(x.double(), dim, keepdim).to(x.dtype)

        for dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            kept = functools.partial(one_by_one, dtype=dtype)
            yield Mutant(f"{name} accumulation", kept, f"the sum is kept in {name}")
        yield Mutant("the inputs' accumulation", one_by_one, "the sum is kept in the inputs' dtype")
        chain = functools.partial(one_by_one, dtype=torch.float32)
        yield Mutant("one chain", chain, "float32, but one addition after the other")
        yield Mutant("mean", mean, "divided by the number of elements")
        yield Mutant("magnitudes", lambda x, dim, keepdim: right(x.abs(), dim, keepdim), "the signs are lost")

    def _of_numbers(self) -> Iterator[Mutant]:
        """What is wrong with the number of an element that is chosen among others."""
        choose = self.function

        def of(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
            return lambda x, dim, keepdim: choose(change(x), dim, keepdim)

        def last(x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
            line, along = (x.reshape(-1), 0) if dim is None else (x, dim)
            n = line.shape[along] if line.dim() else 1
            found = n - 1 - choose(line.flip(along) if line.dim() else line, along, dim is not None and keepdim)
            return found.reshape(choose(x, dim, keepdim).shape)

        def signed(x: Tensor) -> Tensor:
            return torch.where(x == 0, torch.where(torch.signbit(x), -1e-30, 1e-30).to(x.dtype), x)

        def whole(x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
            return choose(x, dim, keepdim) * 0 + choose(x, None, False)

        yield Mutant("last of equals", last, "of equal elements the last is taken")
        yield Mutant("signed zeros", of(signed), "0 is taken to be more than -0")
        yield Mutant("the other end", of(torch.neg), "of the elements with their signs changed")
        yield Mutant("magnitude", of(torch.abs), "of the elements without their signs")
        yield Mutant("rounded first", of(torch.Tensor.bfloat16), "elements are rounded to bfloat16, and become equal")
        yield Mutant("32 bits", lambda *args: choose(*args).int(), "indices of another dtype than int64")
        yield Mutant("within a block", lambda *args: choose(*args) % 1024, "the index within a block, not a line")
        yield Mutant("of the whole", whole, "the index in all of x")


# ---------------------------------------------------------------- torch's signatures


def _sums(
    input: Tensor, dim: int | tuple[int, ...] | list[int] | None = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    if dtype is not None and dtype != input.dtype:
        return "dtype asks for another result than the input's"
    if isinstance(dim, (tuple, list)):
        if len(dim) > 1:
            return "several dimensions are reduced at once"
        dim = dim[0] if dim else None
    return input, dim, keepdim


def _numbers(input: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Any, ...] | str:
    return input, dim, keepdim


# ---------------------------------------------------------------- cases that all reductions share


def _given(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str, dim: int | None = -1,
    keepdim: bool = False,
) -> dict[str, Any]:  # fmt: skip
    if kind == FEW:
        x = torch.randint(-2, 3, shape, generator=generator).to(dtype)
        x = torch.where(torch.rand(shape, generator=generator) < 0.5, x, -x)
    else:
        x = draw(kind, generator, dtype, *shape)
    return {"x": x, "dim": dim, "keepdim": keepdim}


def _case(shape: tuple[int, ...], dim: int | None, kind: str = "normal", *, keepdim: bool = False, **more: Any) -> Case:
    name = f"{kind}, " * (kind != "normal") + f"dim {dim} of {list(shape)}" + ", kept" * keepdim
    return Case(name, lambda g, d: _given(g, d, shape, kind, dim, keepdim), **more)


# shape, dimension, whether layouts are tried
DOWN: tuple[tuple[tuple[int, ...], int | None, bool], ...] = (
    ((5, 7), 0, False), ((3, 17, 5), 1, True), ((2, 1, 33), 1, False), ((300, 70), 0, True),
    ((7, 130, 2, 3), -3, False), ((0, 5), 0, False), ((4, 0, 3), 1, False), ((0, 5), None, False),
    ((2, 9001), 1, False), ((2, 4500, 3), 1, False), ((66, 2050), 0, False), ((1031,), None, False),
    ((6, 50, 40), None, True), ((), None, False), ((), -1, False), ((65, 1, 1), 0, False), ((1, 70, 1, 3), None, False),
)  # fmt: skip
KEEPDIM_CASES: tuple[tuple[tuple[int, ...], int | None], ...] = (
    ((4, 33), -1),
    ((4, 33), 0),
    ((3, 4, 5), None),
    ((), None),
)
# Lines that are too few and too long for one thread each.
SPLIT_CASES: tuple[tuple[tuple[int, ...], int | None], ...] = (
    ((3, 200_001), -1), ((40_003, 5), 0), ((2, 10_007, 7), 1), ((200_003,), None)
)  # fmt: skip
# A line in a tile, in several, cut into parts; the same down columns.
DEVICE: tuple[tuple[tuple[int, ...], int | None], ...] = (
    ((5003, 200), -1), ((3001, 1024), -1), ((301, 20_011), -1), ((3, 1_000_003), -1), ((1000, 1003), None),
    ((64, 300, 129), 1), ((100_003, 130), 0), ((5000, 2051), 0),
)  # fmt: skip
# On a CPU beyond its caches either way, and one that only its host time limits; on a GPU the same.
BENCH: tuple[tuple[tuple[int, ...], int | None, torch.dtype], ...] = (
    ((2048, 4096), -1, F32), ((2048, 4096), 0, F32), ((2048, 4096), None, BF16), ((2048, 4096), 0, BF16),
    ((1, 1024), -1, F32),
)  # fmt: skip
DEVICE_BENCH: tuple[tuple[tuple[int, ...], int | None], ...] = (
    ((8192, 4096), -1), ((8192, 4096), 0), ((4096, 16384), None), ((16, 1024), -1)
)  # fmt: skip
ODD_ROWS = (((32, 1024, 4095), 1),)  # at no multiple of 16 bytes


def _dims(request: Request) -> dict[str, int]:
    """Lines, their elements, and how many lines lie side by side."""
    shape, dim = request.args["x"].shape, request.args["dim"]
    inner = 1 if dim is None or not shape else math.prod(shape[dim % len(shape) + 1 :])
    return {
        "M": math.prod(_shape(request.args["x"], dim, True)),
        "N": math.prod(reduced_sizes(shape, dim)),
        "inner": inner,
    }
