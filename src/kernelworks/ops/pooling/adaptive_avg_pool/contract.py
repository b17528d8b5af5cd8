"""What adaptive_avg_pool1d, adaptive_avg_pool2d and adaptive_avg_pool3d promise: an entry each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, into, table_triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of, schema_of
from kernelworks.contract.cases import SMOOTH, VALUES, draw
from kernelworks.contract.int_tuple import IntTuple, ints
from kernelworks.contract.tensor_argument import T
from kernelworks.contract.window_grid import DIMENSIONS, in_format, is_channels_last, memory_format, volume
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.mutants import generic
from kernelworks.templates.op_package import OpPackage, OpTable
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["TABLE", "AdaptivePool"]

BF16, F32 = torch.bfloat16, torch.float32
SMALLEST, U32 = 2.0**-149, UNIT_ROUNDOFF[torch.float32]
TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "simd.cpp")
NANOSECONDS = 0.3  # about what an element takes one thread

# Sizes of what is pooled, and of the outputs: windows side by side, which overlap, of one element, of everything, more
# outputs than elements.
Sizes = tuple[int, ...]
PLACES: dict[int, tuple[tuple[Sizes, Sizes], ...]] = {
    1: (((12,), (3,)), ((7,), (3,)), ((37,), (5,)), ((5,), (5,)), ((40,), (1,)), ((3,), (8,)), ((1,), (4,)),
        ((200,), (7,)), ((1031,), (2,))),
    2: (((8, 8), (4, 4)), ((7, 9), (3, 4)), ((7, 7), (1, 1)), ((6, 35), (6, 2)), ((5, 67), (2, 67)), ((2, 3), (5, 4)),
        ((1, 1), (2, 3)), ((13, 18), (1, 5)), ((33, 1), (4, 1)), ((31, 40), (2, 1))),
    3: (((4, 4, 6), (2, 2, 3)), ((5, 7, 6), (3, 2, 4)), ((3, 4, 5), (1, 1, 1)), ((2, 3, 19), (4, 1, 2)),
        ((1, 1, 1), (1, 2, 1)), ((6, 5, 18), (2, 5, 1))),
}  # fmt: skip
TIMED_SIZES: dict[int, tuple[tuple[int, int, Sizes, Sizes], ...]] = {
    1: ((32, 256, (1024,), (1,)), (32, 256, (1000,), (7,))),
    2: ((32, 512, (14, 14), (1, 1)), (8, 256, (32, 32), (7, 7))),
    3: ((8, 256, (8, 14, 14), (1, 1, 1)), (4, 64, (16, 28, 28), (4, 7, 7))),
}
DEVICE_SIZES: dict[int, tuple[Sizes, Sizes]] = {
    1: ((40_003,), (301,)),
    2: ((203, 197), (50, 7)),
    3: ((31, 37, 35), (4, 9, 5)),
}


def longest(n: int, outputs: int) -> int:
    """The elements of the longest window along a dimension; of the outputs that an element is in, with both changed."""
    most = -(-n // outputs)
    return most if n % outputs == 0 else min(n, most + 1)


@dataclass(frozen=True, kw_only=True)
class AdaptivePool(OpPackage):
    """The mean of windows that follow from the size of the output: an entry for each number of dimensions."""

    dims: int

    @functools.cached_property
    def name(self) -> str:
        return f"adaptive_avg_pool{self.dims}d"

    @property
    def function(self) -> Callable[..., Any]:
        """torch's."""
        found: Callable[..., Any] = getattr(F, self.name)
        return found

    @functools.cached_property
    def arguments(self) -> Arguments:
        names = DIMENSIONS[self.dims]
        where = tuple(f"{name} >= 1" for name in ("C", *names.split()))
        return {"x": T(f"B C {names}", where=where), "output_size": IntTuple(self.dims, 1)}

    def sizes(self, args: Mapping[str, Any]) -> Sizes:
        return ints(args["output_size"], self.dims)

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """What an entry promises."""
        return Contract(
            name=self.name, family=self.folder.parent.name,
            formula="output[o] = the mean of x[floor(o N / O)], ..., x[ceil((o + 1) N / O) - 1] along each of "
            + DIMENSIONS[self.dims], source=f"torch.nn.functional.{self.name}", outputs=("output",),
            differentiable=("x",), check=check_of(self.arguments), reference=self.reference, bound=self._bound,
            gradient_bound=self._gradient_bound, cost=self._cost, dims=self._dims, bucket=self._bucket,
            cases=tuple(self._cases()), bench_cases=tuple(self._timed(F32, 1)),
            device_cases=tuple(self._case(4, 6, *DEVICE_SIZES[self.dims], last) for last in (False, True)),
            device_bench_cases=tuple(self._timed(BF16, 16)), errors=errors_of(self.arguments),
        )  # fmt: skip

    def reference(self, x: Tensor, output_size: Any) -> tuple[Tensor, ...]:
        return (self.function(x.contiguous(), ints(output_size, self.dims)),)

    def _gamma(self, count: int) -> float:
        return count * U32 / (1.0 - count * U32)

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        """A sum of a window's elements, and a factor of two roundings."""
        x, most = args["x"], math.prod(map(longest, args["x"].shape[2:], self.sizes(args)))
        inside = self._gamma(most + 1) * self.reference(x.abs(), args["output_size"])[0] + SMALLEST
        return (rounding(outputs[0], dtype) + (1.0 + UNIT_ROUNDOFF[dtype]) * inside,)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """A sum over the windows that an element is in, each term with a factor of two roundings."""
        with torch.enable_grad():
            x = args["x"].detach().clone().requires_grad_()
            (terms,) = torch.autograd.grad(self.reference(x, args["output_size"])[0], x, grads[0].abs())
        windows = math.prod(map(longest, self.sizes(args), args["x"].shape[2:]))
        inside = self._gamma(windows + 1) * terms + windows * SMALLEST
        return {"x": rounding(gradients["x"], dtype) + (1.0 + UNIT_ROUNDOFF[dtype]) * inside}

    def _cost(self, request: Request) -> Cost:
        x = request.args["x"]
        made = math.prod((*x.shape[:2], *self.sizes(request.args)))
        terms = math.prod(map(longest, x.shape[2:], self.sizes(request.args)))
        flop, written = float(made * (terms + 1)), made * x.dtype.itemsize
        return Cost(flop, 0.0, *((written, x.nbytes) if request.pass_ == "backward" else (x.nbytes, written)))

    def _dims(self, request: Request) -> dict[str, int]:
        return dict(zip(("B", "C", *DIMENSIONS[self.dims].split()), request.args["x"].shape, strict=True))

    def _bucket(self, request: Request) -> dict[str, Any]:
        x = request.args["x"]
        return {"outputs": self.sizes(request.args), "channels_last": x.stride[1] == 1 and x.stride[-1] != 1}

    # ------------------------------------------------------------ cases

    def _case(
        self, batch: int, channels: int, sizes: Sizes, outputs: Sizes, last: bool = False, kind: str = "normal",
        **more: Any,
    ) -> Case:  # fmt: skip
        said = f"{batch}x{channels}x{'x'.join(map(str, sizes))} to {'x'.join(map(str, outputs))}"

        def make(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
            x = in_format(draw(kind, generator, dtype, batch, channels, *sizes), last)
            return {"x": x, "output_size": outputs}

        return Case(f"{kind}, " * (kind != "normal") + said + ", channels last" * last, make, **more)

    def _cases(self) -> Iterator[Case]:
        for i, (sizes, outputs) in enumerate(PLACES[self.dims]):
            for last in (False, True)[: min(self.dims, 2)]:
                yield self._case(2, (3, 19)[(i + last) % 2], sizes, outputs, last, layouts=i in (1, 3))
        sizes, outputs = PLACES[self.dims][1]
        for kind in VALUES:
            if kind != "normal":
                yield self._case(2, 3, sizes, outputs, self.dims > 1, kind, gradients=kind in SMOOTH)
                yield self._case(1, 2, sizes, (1,) * self.dims, False, kind, gradients=kind in SMOOTH)
        yield self._case(0, 3, sizes, outputs)
        yield Case("one number for all", lambda g, d: {"x": draw("normal", g, d, 2, 3, *sizes), "output_size": 3})

    def _timed(self, dtype: torch.dtype, times: int) -> Iterator[Case]:
        for batch, channels, sizes, outputs in TIMED_SIZES[self.dims]:
            yield self._case(times * batch, channels, sizes, outputs, dtypes=(dtype,))

    # ------------------------------------------------------------ mutants

    def _mutants(self) -> Iterator[Mutant]:
        yield from generic(self.reference, ("x",), tuple(self.arguments))

        def of(how: Callable[[Tensor, Sizes], Tensor]) -> Callable[..., Tensor]:
            return lambda x, size: how(x.double(), ints(size, self.dims)).to(x.dtype)

        def along(x: Tensor, outputs: Sizes, part: Callable[[int, int, int], tuple[int, int]]) -> Tensor:
            """Windows of other ends, one dimension after the other."""
            for dim, n in enumerate(outputs, 2):
                ends = [part(o, x.shape[dim], n) for o in range(n)]
                x = torch.stack([x.narrow(dim, a, max(b - a, 1)).mean(dim) for a, b in ends], dim)
            return x

        def shut(x: Tensor, outputs: Sizes) -> Tensor:
            return along(x, outputs, lambda o, n, count: (o * n // count, (o + 1) * n // count))

        def side_by_side(x: Tensor, outputs: Sizes) -> Tensor:
            def part(o: int, n: int, count: int) -> tuple[int, int]:
                size = -(-n // count)
                begin = min(o * size, n - 1)
                return begin, min(begin + size, n)

            return along(x, outputs, part)

        def summed(x: Tensor, outputs: Sizes) -> Tensor:
            most = math.prod(map(longest, x.shape[2:], outputs))
            return self.reference(x, outputs)[0] * most

        right = of(lambda x, outputs: self.reference(x, outputs)[0])
        yield Mutant("ends rounded down", of(shut), "a window's last element, which its neighbour has too, is left out")
        yield Mutant("side by side", of(side_by_side), "windows of one size, which do not overlap")
        yield Mutant("not divided", of(summed), "the sum")
        yield Mutant(
            "largest", of(lambda x, n: getattr(F, f"adaptive_max_pool{self.dims}d")(x, n)), "the largest of it"
        )
        yield Mutant("turned", lambda x, n: right(x.flip(-1), n), "the last dimension is read from the other end")
        yield Mutant("first of the batch", lambda x, n: right(x[:1].expand_as(x), n), "one for the batch")

    # ------------------------------------------------------------ the op

    def op(self) -> Op:
        made = schema_of(self.arguments)
        forward = Pass(f"{self.name}({made}, str? op_kernel=None) -> Tensor", self.empty_output)
        backward = Pass(
            f"{self.name}_backward(Tensor grad_output, {made}, str? op_kernel=None) -> Tensor",
            lambda grad, x, output_size: x.new_empty(x.shape), returns=("x",), reads={"x": ("grad_output",)},
        )  # fmt: skip
        op: Op = Op(
            self.contract,
            [
                *self._kernels(),
                *python_kernels(
                    self.contract, forward, backward, self.composite, lambda: op, torch_backward=self._torch_backward
                ),
            ],
            op_package=self.op_package, forward=forward, backward=backward, composite=self.composite,
            mutants=tuple(self._mutants()),
        )  # fmt: skip
        op.template = self

        def ours(input: Any, output_size: Any) -> tuple[Any, ...] | str:
            if isinstance(output_size, (list, tuple)) and len(output_size) != self.dims:
                return f"output_size is one number or {self.dims}"
            if isinstance(output_size, (list, tuple)) and None in output_size:  # a dimension that stays as it is
                output_size = [
                    n if own is None else own
                    for n, own in zip(input.shape[2:], output_size, strict=False)
                ]  # fmt: skip
            return input, output_size

        TorchSignature(op, self.function, ours, {"input": "x"})
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What ``kernelworks map OP`` tells of an entry."""
        return {"gradient": "what flows into each window that an element is in, over its count"}

    def composite(self, x: Tensor, output_size: Any) -> Tensor:
        made: Tensor = self.function(x, ints(output_size, self.dims))
        return made

    def _torch_backward(self, grad: Tensor, x: Tensor, output_size: Any, out: Any = None) -> Any:
        """torch's own, which reads x's shape alone: its values are not at hand."""
        shape, flow = x.new_empty(x.shape), grad
        if not x.numel():  # torch declines those
            return into(shape, out)
        if self.dims == 1:  # that of a picture of one row
            shape, flow = shape.unsqueeze(2), flow.unsqueeze(2)
        aten = torch.ops.aten
        of_torch = aten._adaptive_avg_pool3d_backward if self.dims == 3 else aten._adaptive_avg_pool2d_backward
        return into(of_torch(flow, shape).reshape(x.shape).contiguous(), out)

    def empty_output(self, x: Tensor, output_size: Any) -> Tensor:
        """Where the output goes, which lies as torch's does."""
        form = memory_format(x) if self.dims > 1 else torch.contiguous_format
        shape = (*x.shape[:2], *ints(output_size, self.dims))
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)

    # ------------------------------------------------------------ launches

    def _kernels(self) -> list[Kernel]:
        return [
            table_triton_kernel(self.folder, self.name),
            *cpp_kernels(self.folder, forward=_forward_of(self), backward=_backward, targets=TARGETS),
        ]


def _forward_of(pool: AdaptivePool) -> Callable[..., Tensor]:
    def forward(lib: Any, x: Tensor, output_size: Any, out: Tensor | None = None) -> Tensor:
        output = pool.empty_output(x, output_size) if out is None else out
        channels = is_channels_last(x) and is_channels_last(output)
        wide, to = volume(x), volume(output)
        if not channels:
            if wide.stride(4) != 1:
                wide = wide.contiguous()
            if to.shape[2:].numel() == 1 and wide.is_contiguous():  # each channel is one window, and one row
                wide = wide.view(*wide.shape[:2], 1, 1, -1)
        run, threads = choose_threads(lib.adaptive_avg_pool, NANOSECONDS * x.numel())
        run(to, wide, channels, threads)
        return output

    return forward


def _backward(lib: Any, grad: Tensor, x: Tensor, output_size: Any, out: Tensor | None = None) -> Tensor:
    made = torch.empty(x.shape, dtype=x.dtype)
    run, threads = choose_threads(lib.adaptive_avg_pool_backward, NANOSECONDS * x.numel())
    run(volume(made), volume(grad.contiguous()), threads)
    result: Tensor = made if out is None else into(made, out)
    return result


TABLE = OpTable.of([AdaptivePool(op_package=__file__, dims=dims) for dims in (1, 2, 3)])
