"""The pooling template: the mean or the maximum of windows of a line, a picture or a volume.

``NAME(x, kernel_size, stride, padding, ...)`` of [B, C, ...]. An entry of an op package's table says how many
dimensions it has and what a window is folded to (``Pool``); ``simd.cpp`` and ``triton.py`` are a few lines
(``simd/window.hpp``, ``tile/window.py``). What follows from that is made here; cases and mutants lie in
``window_cases.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, table_triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Contract, Cost, Kernel, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, Int64, check_of, errors_of, schema_of
from kernelworks.contract.int_tuple import IntTuple, ints
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.contract.window_grid import DIMENSIONS, Grid, is_channels_last, memory_format, volume
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.torch_kernels import python_kernels
from kernelworks.templates.window_cases import cases_of, device_cases, mutants_of, timed_cases

__all__ = ["Pool", "PoolCall", "triton_functions"]

MEAN, MAX = "mean", "max"
SMALLEST, U32 = 2.0**-149, UNIT_ROUNDOFF[torch.float32]
MOST = 2**31 - 1  # elements of what windows slide over: their indices are 32 bits of a vector
TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "simd.cpp")
NANOSECONDS = 0.5  # about what an element of a window takes one thread


class PoolCall(NamedTuple):
    """What a call's numbers say."""

    grid: Grid
    whole: bool  # whether what lies around the picture counts
    divisor: int  # 0: the window's size
    indices: bool


@dataclass(frozen=True, kw_only=True)
class Pool(OpPackage):
    """What only an entry knows of a pooling: its dimensions, and ``fold``, ``"mean"`` or ``"max"``.

    ``op_package`` is the op package's ``__file__``. ``keeps_format``: whether torch's result lies as x does.
    """

    dims: int
    fold: str
    keeps_format: bool = True

    @functools.cached_property
    def name(self) -> str:
        return f"{'avg' if self.fold == MEAN else 'max'}_pool{self.dims}d"

    @property
    def function(self) -> Callable[..., Any]:
        """torch's."""
        found: Callable[..., Any] = getattr(F, self.name)
        return found

    @functools.cached_property
    def arguments(self) -> Arguments:
        given = functools.partial(IntTuple, self.dims)
        arguments: dict[str, Any] = {
            "x": T(f"B C {DIMENSIONS[self.dims]}", where=("C >= 1",)),
            "kernel_size": given(1, usual=2),
            "stride": given(1, optional=True),
            "padding": given(0, usual=0),
        }
        if self.fold == MAX:
            return arguments | {"dilation": given(1), "ceil_mode": Flag(), "return_indices": Flag()}
        arguments |= {"ceil_mode": Flag(), "count_include_pad": Flag()}
        return arguments | ({} if self.dims == 1 else {"divisor_override": Int64(1, optional=True)})

    def call_of(self, args: Mapping[str, Any]) -> PoolCall:
        """What the numbers among a call's arguments say."""
        dilation, ceil_mode = args.get("dilation", 1), args["ceil_mode"]
        grid = Grid.of(self.dims, args["kernel_size"], args["stride"], args["padding"], dilation, ceil_mode)
        whole, divisor = args.get("count_include_pad", True), args.get("divisor_override") or 0
        return PoolCall(grid, whole, divisor, args.get("return_indices", False))

    def _named(self, *args: Any) -> dict[str, Any]:
        return dict(zip(self.arguments, args, strict=True))

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        biggest = self.fold == MAX
        results = {"indices": Result(torch.int64, shape=self._shape, when="return_indices")}
        return Contract(
            name=self.name, family=self.folder.parent.name,
            formula="output = the " + ("largest element" if biggest else "sum of the elements, over their count,")
            + " of each window; indices = where it stands in [" + DIMENSIONS[self.dims] + "]" * biggest,
            source=f"torch.nn.functional.{self.name}", outputs=("output", "indices") if biggest else ("output",),
            results=results if biggest else {}, differentiable=("x",), check=self.check, reference=self.reference,
            bound=self._bound, gradient_bound=self._gradient_bound, cost=self._cost, dims=self._dims,
            bucket=self._bucket, cases=tuple(cases_of(self)), bench_cases=tuple(timed_cases(self, torch.float32)),
            device_cases=tuple(device_cases(self)),
            device_bench_cases=tuple(timed_cases(self, torch.bfloat16, 16)),
            errors=errors_of(self.arguments),
        )  # fmt: skip

    def check(self, **call: Any) -> None:
        check_of(self.arguments)(**call)  # made anew: what is made at the first call only, Dynamo cannot follow
        size, padding = ints(call["kernel_size"], self.dims), ints(call["padding"], self.dims)
        if any(p > n // 2 for p, n in zip(padding, size, strict=True)):
            raise ValueError(f"padding must be at most half of kernel_size {size}, got {padding}")
        self.call_of(call).grid.need_room("x", tuple(call["x"].shape[2:]))

    def reference(self, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        """The definition: a maximum by torch's own function, which says what of equals and of NaN is taken; a sum over
        the places of a window. Of channels_last pictures torch's CUDA function gives index 0 to a window of -inf alone:
        the definition is that of contiguous ones."""
        call = dict(zip(self.arguments, args, strict=False)) | named
        x, (grid, _, _, indices) = call["x"], self.call_of(call)
        if self.fold == MAX:
            made = self.function(
                x.contiguous(), grid.size, grid.stride, grid.padding, grid.dilation, grid.ceil_mode, indices
            )
            return tuple(made) if indices else (made,)
        return (self._mean(**call),)

    def _mean(self, **call: Any) -> Tensor:
        grid, whole, divisor, _ = self.call_of(call)
        total: Any = sum(part for _, part in grid.taps(call["x"]))
        made: Tensor = total / (divisor or self.count(call["x"], grid, whole).to(total.dtype))
        return made

    def count(self, x: Tensor, grid: Grid, whole: bool) -> Tensor:
        """By how many each sum is divided."""
        count = torch.ones((), dtype=torch.float64, device=x.device)
        for dim, (n, outputs) in enumerate(zip(x.shape[2:], grid.counts(tuple(x.shape[2:])), strict=True)):
            size, stride, padding = grid.size[dim], grid.stride[dim], grid.padding[dim]
            begin = torch.arange(outputs, device=x.device) * stride - padding
            end = torch.minimum(begin + size, torch.tensor(n + padding, device=x.device))
            if not whole:
                begin, end = begin.clamp(min=0), end.clamp(max=n)
            count = count.unsqueeze(-1) * (end - begin).double()
        return count

    def _shape(self, args: Mapping[str, Any]) -> tuple[int, ...]:
        shape = tuple(args["x"].shape)
        return (*shape[:2], *self.call_of(args).grid.counts(shape[2:]))

    def _terms(self, args: Mapping[str, Any]) -> int:
        return math.prod(self.call_of(args).grid.size)

    def _gamma(self, count: int) -> float:
        return count * U32 / (1.0 - count * U32)

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        if self.fold == MAX:  # an element itself
            return tuple(torch.zeros(o.shape, dtype=torch.float64, device=o.device) for o in outputs)
        # A division, or a factor of two roundings.
        inside = self._gamma(self._terms(args) + 1) * self.reference(**args | {"x": args["x"].abs()})[0] + SMALLEST
        return (rounding(outputs[0], dtype) + (1.0 + UNIT_ROUNDOFF[dtype]) * inside,)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """The terms of a gradient are what flows into the windows that an element is in, or is the largest of."""
        with torch.enable_grad():
            x = args["x"].detach().clone().requires_grad_()
            output = self.reference(**args | {"x": x})[0]
            (terms,) = torch.autograd.grad(output, x, grads[0].abs(), retain_graph=True)
            if self.fold == MAX:
                (count,) = torch.autograd.grad(output, x, torch.ones_like(output))
                inside = U32 * (count - 1.0).clamp(min=0.0) * terms
                return {"x": torch.where(count > 0, rounding(gradients["x"], dtype) + 1.01 * inside, 0.0)}
        windows = self._terms(args)
        inside = self._gamma(windows + 1) * terms + windows * SMALLEST
        return {"x": rounding(gradients["x"], dtype) + (1.0 + UNIT_ROUNDOFF[dtype]) * inside}

    def _cost(self, request: Request) -> Cost:
        x, size = request.args["x"], request.args["x"].dtype.itemsize
        made = math.prod(self._shape(request.args))
        flop = float(made * (self._terms(request.args) + (self.fold == MEAN)))
        if request.pass_ == "backward":
            return Cost(flop, 0.0, made * size + x.nbytes * (self.fold == MAX), x.nbytes)
        return Cost(flop, 0.0, x.nbytes, made * (size + 8 * bool(request.args.get("return_indices"))))

    def _dims(self, request: Request) -> dict[str, int]:
        return dict(zip(("B", "C", *DIMENSIONS[self.dims].split()), request.args["x"].shape, strict=True))

    def _bucket(self, request: Request) -> dict[str, Any]:
        """What makes another computation of the same elements: the window, and how they lie."""
        x, call = request.args["x"], self.call_of(request.args)
        return {"window": (call.grid.size, call.grid.stride), "channels_last": x.stride[1] == 1 and x.stride[-1] != 1}

    # ------------------------------------------------------------ the op

    def op(self) -> Op:
        made = schema_of(self.arguments)
        biggest = self.fold == MAX
        result = "(Tensor, Tensor)" if biggest else "Tensor"
        forward = Pass(f"{self.name}({made}, str? op_kernel=None) -> {result}", self._fake)
        backward = Pass(
            f"{self.name}_backward(Tensor grad_output, {made}, str? op_kernel=None) -> Tensor",
            lambda grad, x, *others: torch.empty_like(x) if biggest else x.new_empty(x.shape),
            returns=("x",),
            reads={"x": ("grad_output", "x") if biggest else ("grad_output",)},
        )
        op: Op = Op(
            self.contract,
            [
                *self._kernels(),
                *(
                    python_kernels(self.contract, forward, backward, self.composite, lambda: op)
                    if biggest
                    else self._python_kernels()
                ),
            ],
            op_package=self.op_package, forward=forward, backward=backward, composite=self.composite,
            mutants=mutants_of(self),
            # torch wants a fixed number of outputs: without indices the second one is empty.
            to_torch=(lambda result, x, *args: result if args[-1] else (result, x.new_empty(0, dtype=torch.int64)))
            if biggest else None,
            from_torch=(lambda result, x, *args: result if args[-1] else result[0]) if biggest else None,
        )  # fmt: skip
        op.template = self
        others = {f"{self.name}_with_indices": {"return_indices": True}} if biggest else {}
        TorchSignature(op, self.function, self._ours(), {"input": "x"}, other_operators=others)
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        gradient = "what flows into each window, " + (
            "at its largest element" if self.fold == MAX else "over its count"
        )
        return {"gradient": gradient, "kernels": "scalar, avx2, avx512: simd/window.hpp, triton: tile/window.py"}

    def _ours(self) -> Callable[..., tuple[Any, ...] | str]:
        """A function with the signature of torch's."""

        def given(stride: Any) -> Any:
            return None if isinstance(stride, (list, tuple)) and not stride else stride

        def largest(
            input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
            ceil_mode: bool = False, return_indices: bool = False,
        ) -> tuple[Any, ...] | str:  # fmt: skip
            return input, kernel_size, given(stride), padding, dilation, ceil_mode, return_indices

        def mean(
            input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
            count_include_pad: bool = True, divisor_override: Any = None,
        ) -> tuple[Any, ...] | str:  # fmt: skip
            if isinstance(input, Tensor) and input.dtype.itemsize == 2 and input.device.type == "cpu":
                return "torch has no mean of volumes of 16 bits on a CPU"
            return input, kernel_size, given(stride), padding, ceil_mode, count_include_pad, divisor_override

        def mean_of_lines(
            input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
            count_include_pad: bool = True,
        ) -> tuple[Any, ...] | str:  # fmt: skip
            return input, kernel_size, given(stride), padding, ceil_mode, count_include_pad

        return largest if self.fold == MAX else mean_of_lines if self.dims == 1 else mean

    def composite(self, *args: Any, **named: Any) -> Any:
        """How a user writes it. torch's CPU has no mean of volumes of 16 bits, and no gradient if the window is larger
        than the volume; of lines torch keeps no format."""
        call = dict(zip(self.arguments, args, strict=False)) | named
        x = call.pop("x")
        stride = call.pop("stride")
        sizes: dict[str, Any] = {
            n: ints(call.pop(n), self.dims) for n in ("kernel_size", "padding", "dilation") if n in call
        }
        narrow = self.fold == MEAN and self.dims == 3 and x.dtype.itemsize == 2 and x.device.type == "cpu"
        sizes["stride"] = sizes["kernel_size"] if stride is None else ints(stride, self.dims)
        if self.fold == MEAN and any(n < size for n, size in zip(x.shape[2:], sizes["kernel_size"], strict=True)):
            given = {"x": x.float() if narrow else x, **sizes, **call}
            return self._mean(**given).to(x.dtype)
        made = self.function(x.float() if narrow else x, **sizes, **call)
        if isinstance(made, tuple):
            return tuple(map(self._laid_out, made))
        return self._laid_out(made.to(x.dtype) if narrow else made)

    def _laid_out(self, made: Tensor) -> Tensor:
        return made if self.keeps_format and self.dims > 1 else made.contiguous()

    def _empty(self, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        form = memory_format(x) if self.keeps_format else torch.contiguous_format
        return torch.empty(shape, dtype=dtype, device=x.device, memory_format=form)

    def _python_kernels(self) -> list[Kernel]:
        """``torch`` and ``reference`` of a gradient that does not depend on x, which then is not at hand."""

        def back(compute: torch.dtype | None, grad: Tensor, x: Tensor, *args: Any, out: Any = None) -> Any:
            call = self.call_of(self._named(x, *args))
            narrow = self.dims == 3 and x.dtype.itemsize == 2 and x.device.type == "cpu"
            wide = torch.float32 if narrow and compute is None else compute or x.dtype
            shape = x.new_empty(x.shape, dtype=wide)
            grid, flow = call.grid, grad.to(wide)
            if any(n < size for n, size in zip(x.shape[2:], grid.size, strict=True)):  # torch declines those
                flow = flow / (call.divisor or self.count(x, grid, call.whole).to(wide))
                return into(grid.spread(flow, tuple(x.shape[2:])).to(x.dtype), out)
            numbers = [grid.size, grid.stride, grid.padding]
            if self.dims == 1:  # torch's own is that of a picture of one row
                shape, flow = shape.unsqueeze(2), flow.unsqueeze(2)
                numbers = [(1, *numbers[0]), (1, *numbers[1]), (0, *numbers[2])]
            of_torch = torch.ops.aten.avg_pool2d_backward if self.dims == 1 else torch.ops.aten.avg_pool3d_backward
            made = of_torch(flow, shape, *numbers, grid.ceil_mode, call.whole, call.divisor or None)
            return into(made.reshape(x.shape).to(x.dtype), out)

        return [
            python_kernel(
                "torch", lambda *args, out=None: into(self.composite(*args), out), functools.partial(back, None)
            ),
            python_kernel("reference", in_float64(self.reference), functools.partial(back, torch.float64)),
        ]

    def _fake(self, *args: Any) -> Any:
        call, x = self._named(*args), args[0]
        shape = self._shape(call)
        output = self._empty(x, shape, x.dtype)
        if self.fold == MEAN:
            return output
        return output, self._empty(x, shape, torch.int64) if call["return_indices"] else x.new_empty(
            0, dtype=torch.int64
        )

    # ------------------------------------------------------------ launches

    def _kernels(self) -> list[Kernel]:
        return [
            table_triton_kernel(self.folder, self.name),
            *cpp_kernels(
                self.folder, forward=self._forward, backward=self._backward, targets=TARGETS, guard=self._decline
            ),
        ]

    def _decline(self, request: Request) -> str | None:
        count = math.prod(request.args["x"].shape[2:])
        return f"takes up to {MOST} elements a channel, got {count}" if count > MOST else None

    def outputs(self, args: tuple[Any, ...], out: Any) -> tuple[PoolCall, Tensor, Tensor | None]:
        """What a call says, and where its results go."""
        named = self._named(*args)
        call, x = self.call_of(named), args[0]
        if out is not None:
            return (call, *out) if call.indices else (call, out, None)
        shape = self._shape(named)
        return call, self._empty(x, shape, x.dtype), self._empty(x, shape, torch.int64) if call.indices else None

    def _forward(self, lib: Any, *args: Any, out: Any = None) -> Any:
        call, output, indices = self.outputs(args, out)
        x = volume(args[0])
        to, where = volume(output), None if indices is None else volume(indices)
        channels = is_channels_last(args[0]) and is_channels_last(output)
        if where is not None and where.stride() != to.stride():  # of an out that lies otherwise
            where = torch.empty_like(to, dtype=torch.int64)
        if not channels and x.stride(4) != 1:
            x = x.contiguous()
        kernel = lib.max_pool if self.fold == MAX else lib.avg_pool
        run, threads = choose_threads(kernel, NANOSECONDS * output.numel() * math.prod(call.grid.size))
        run(to, where, x, *call.grid.numbers, call.whole, call.divisor, channels, threads)
        if indices is None:
            return output
        if where is not None and where.data_ptr() != indices.data_ptr():
            indices.copy_(where.reshape(indices.shape))
        return output, indices

    def _backward(self, lib: Any, grad: Tensor, *args: Any, out: Any = None) -> Tensor:
        call, x = self.call_of(self._named(*args)), args[0]
        made = torch.empty(x.shape, dtype=x.dtype)
        wide = volume(x)
        if self.fold == MAX and wide.stride(4) != 1:
            wide = wide.contiguous()
        flow = volume(grad.contiguous())
        kernel = lib.max_pool_backward if self.fold == MAX else lib.avg_pool_backward
        run, threads = choose_threads(kernel, NANOSECONDS * grad.numel() * math.prod(call.grid.size))
        run(
            volume(made),
            flow,
            wide if self.fold == MAX else None,
            *call.grid.numbers,
            call.whole,
            call.divisor,
            threads,
        )
        if out is None and (self.fold == MEAN or torch.empty_like(x, device="meta").is_contiguous()):
            return made
        result: Tensor = into(made, torch.empty_like(x) if out is None else out)
        return result


def triton_functions(pool: Pool, launches: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The forward and the backward of an entry on a GPU, by its ``tile.window.Pooling``."""
    fold = pool.fold

    def forward(*args: Any, out: Any = None) -> Any:
        call, output, indices = pool.outputs(args, out)
        launches.forward(fold, volume(output), None if indices is None else volume(indices), volume(args[0]), call)
        return output if indices is None else (output, indices)

    def backward(grad: Tensor, *args: Any, out: Any = None) -> Tensor:
        x = args[0]
        call = pool.call_of(dict(zip(pool.arguments, args, strict=True)))
        new = torch.empty_like(x) if fold == MAX else x.new_empty(x.shape)
        made: Tensor = new if out is None else out
        launches.backward(fold, volume(made), volume(grad), volume(x), call)
        return made

    return forward, backward
