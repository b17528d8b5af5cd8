"""The convolution template: sums over windows of lines, pictures or volumes, times filters; and the same transposed.

``convNd(x, weight, bias, stride, padding, dilation, groups)`` and ``conv_transposeNd(x, weight, bias, stride, padding,
output_padding, groups, dilation)`` are the gradients of each other's inputs: one product serves both, and another one
the gradients of both's filters (``simd/window.hpp``, ``conv/triton.py``). An entry of an op package's table says
how many dimensions it has and which of the two it is (``Convolution``); cases and mutants lie in
``window_cases.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, table_triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Contract, Cost, Kernel, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of, schema_of
from kernelworks.contract.int_pair import Groups
from kernelworks.contract.int_tuple import IntTuple, TransposedGroups, ints
from kernelworks.contract.tensor_argument import T
from kernelworks.contract.tensors import is_transform_active
from kernelworks.contract.window_grid import DIMENSIONS, FORMATS, Grid, is_channels_last, volume
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.product import gamma
from kernelworks.templates.window_cases import (
    convolution_cases,
    convolution_device_cases,
    convolution_mutants,
    timed_convolutions,
)

__all__ = ["ConvolutionCall", "Convolution", "triton_functions"]

SMALLEST = 2.0**-149
RETURNS = ("x", "weight", "bias")
TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "simd.cpp")
PRODUCTS = 8  # that a core takes in a nanosecond


class ConvolutionCall(NamedTuple):
    """What a call's numbers say."""

    grid: Grid
    output_padding: tuple[int, ...]
    groups: int


@dataclass(frozen=True, kw_only=True)
class Convolution(OpPackage):
    """What only an entry knows of a convolution: its dimensions, and whether it is ``transposed``. ``op_package`` is
    the op package's ``__file__``."""

    dims: int
    transposed: bool = False

    @functools.cached_property
    def name(self) -> str:
        return f"conv_transpose{self.dims}d" if self.transposed else f"conv{self.dims}d"

    @property
    def function(self) -> Callable[..., Any]:
        """torch's."""
        found: Callable[..., Any] = getattr(F, self.name)
        return found

    @functools.cached_property
    def arguments(self) -> Arguments:
        sizes, number = DIMENSIONS[self.dims], functools.partial(IntTuple, self.dims)
        own = " ".join(f"K{name}" for name in sizes.split())
        every = (*(f"K{name} >= 1" for name in sizes.split()), "C >= 1", "G >= 1")
        if self.transposed:
            return {
                "x": T(f"B C {sizes}", where=tuple(f"{name} >= 1" for name in sizes.split())),
                "weight": T(f"C G {own}", like="x", where=every),
                "bias": T("N", like="x", optional=True, where=("N == G * groups",)),
                "stride": number(1), "padding": number(0, usual=0), "output_padding": number(0, usual=0),
                "groups": TransposedGroups("x"), "dilation": number(1),
            }  # fmt: skip
        return {
            "x": T(f"B C {sizes}"),
            "weight": T(f"O G {own}", like="x", where=(*every, "O >= 1", "divides(G, C)")),
            "bias": T("O", like="x", optional=True),
            "stride": number(1), "padding": number(0), "dilation": number(1), "groups": Groups("x", "weight"),
        }  # fmt: skip

    def call_of(self, args: Mapping[str, Any]) -> ConvolutionCall:
        """What the numbers among a call's arguments say."""
        grid = Grid.of(self.dims, tuple(args["weight"].shape[2:]), args["stride"], args["padding"], args["dilation"])
        return ConvolutionCall(grid, ints(args.get("output_padding", 0), self.dims), args["groups"])

    def _named(self, *args: Any) -> dict[str, Any]:
        return dict(zip(self.arguments, args, strict=True))

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        where = "p stride + k dilation - padding" if not self.transposed else "(p + padding - k dilation) / stride"
        return Contract(
            name=self.name, family=self.folder.parent.name,
            formula=f"output[b, o, p] = bias[o] + sum_{{c, k}} weight[o, c, k] x[b, c, {where}], of the channels c of "
            "o's group, x is 0 outside" + " and between" * self.transposed,
            source=f"torch.nn.functional.{self.name}; Dumoulin and Visin, A guide to convolution arithmetic, 2016 "
            "(arXiv:1603.07285)",
            outputs=("output",), differentiable=RETURNS, check=self.check, reference=self.reference, bound=self._bound,
            gradient_bound=self._gradient_bound, cost=self._cost, dims=self._dims, bucket=self._bucket,
            arithmetic="products",
            cases=tuple(convolution_cases(self)),
            bench_cases=tuple(timed_convolutions(self, torch.float32)),
            device_cases=tuple(convolution_device_cases(self)),
            device_bench_cases=tuple(timed_convolutions(self, torch.bfloat16, 8 if self.dims == 1 else 64)),
            errors=errors_of(self.arguments),
        )  # fmt: skip

    def check(self, **call: Any) -> None:
        check_of(self.arguments)(**call)  # made anew: what is made at the first call only, Dynamo cannot follow
        grid, more, _ = self.call_of(call)
        sizes = tuple(call["x"].shape[2:])
        if not self.transposed:
            grid.need_room("x", sizes, filled=False)
            return
        for dim, n in enumerate(more):
            if n >= max(grid.stride[dim], grid.dilation[dim]):
                raise ValueError(
                    f"output_padding must be below stride or dilation, {grid.stride[dim]} and {grid.dilation[dim]}, "
                    f"got {n}"
                )
        made = self._sizes(sizes, grid, more)
        if any(n < 1 for n in made):
            raise ValueError(f"x must be large enough for its padding, got an output of {list(made)}")

    def _sizes(self, sizes: Sequence[int], grid: Grid, more: Sequence[int]) -> tuple[int, ...]:
        if not self.transposed:
            return grid.counts(sizes)
        return tuple(
            (n - 1) * grid.stride[d] - 2 * grid.padding[d] + grid.reach(d) + more[d] for d, n in enumerate(sizes)
        )

    def shape(self, args: Mapping[str, Any]) -> tuple[int, ...]:
        """The output's."""
        x, weight = args["x"], args["weight"]
        grid, more, groups = self.call_of(args)
        filters = weight.shape[1] * groups if self.transposed else weight.shape[0]
        return (x.shape[0], filters, *self._sizes(tuple(x.shape[2:]), grid, more))

    def definition(self, x: Tensor, weight: Tensor, bias: Tensor | None, call: ConvolutionCall) -> Tensor:
        """The sum over the places of a window. A transposed convolution is one of x with zeros between its elements,
        with filters turned around."""
        grid, more, groups = call
        if self.transposed:
            weight = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
            around: list[int] = []
            for d in reversed(range(self.dims)):
                edge = grid.dilation[d] * (grid.size[d] - 1) - grid.padding[d]
                around += [edge, edge + more[d]]
            for d, stride in enumerate(grid.stride):
                apart = x.unsqueeze(d + 3)
                apart = F.pad(apart, [0, 0] * (self.dims - 1 - d) + [0, stride - 1])
                x = apart.flatten(d + 2, d + 3).narrow(d + 2, 0, (x.shape[d + 2] - 1) * stride + 1)
            x = F.pad(x, around)
            weight = weight.flip(*range(2, 2 + self.dims))
            grid = Grid.of(self.dims, grid.size, 1, 0, grid.dilation)
        filters = weight.flatten(2).unflatten(0, (groups, -1))
        total: Any = 0.0
        for i, (_, part) in enumerate(grid.taps(x)):
            shape = part.shape[2:]
            total = total + torch.einsum("bgcp,gfc->bgfp", part.flatten(2).unflatten(1, (groups, -1)), filters[..., i])
        made: Tensor = total.flatten(1, 2).unflatten(-1, shape)
        return made if bias is None else made + bias.reshape(-1, *(1,) * self.dims)

    def reference(self, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        call = dict(zip(self.arguments, args, strict=False)) | named
        return (self.definition(call["x"], call["weight"], call["bias"], self.call_of(call)),)

    def _terms(self, args: Mapping[str, Any]) -> int:
        """Of a sum."""
        weight = args["weight"]
        channels = weight.shape[0] // args["groups"] if self.transposed else weight.shape[1]
        return int(channels * math.prod(weight.shape[2:]))

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        bias, terms = args["bias"], self._terms(args)
        sizes = args["x"].abs(), args["weight"].abs(), None if bias is None else bias.abs()
        inside = gamma(terms + 1) * self.definition(*sizes, self.call_of(args)) + (terms + 1) * SMALLEST
        return (rounding(outputs[0], dtype) + (1.0 + UNIT_ROUNDOFF[dtype]) * inside,)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        x, weight, flow = args["x"], args["weight"], grads[0].abs()
        with torch.enable_grad():  # the gradients of magnitudes are the sums of the magnitudes of products
            sizes = x.detach().abs().requires_grad_(), weight.detach().abs().requires_grad_()
            made = self.definition(*sizes, None, self.call_of(args))
            found = torch.autograd.grad(made, sizes, flow)
        taps = math.prod(weight.shape[2:])
        filters = taps * (weight.shape[1] if self.transposed else weight.shape[0] // args["groups"])
        places, of_x = flow[:, 0].numel(), x[:, 0].numel()
        summed = of_x if self.transposed else places
        inside = {
            "x": gamma(filters) * found[0] + filters * SMALLEST,
            "weight": gamma(summed) * found[1] + summed * SMALLEST,
            "bias": gamma(places) * flow.sum((0, *range(2, 2 + self.dims))),
        }
        u = UNIT_ROUNDOFF[dtype]
        return {name: rounding(g, dtype) + (1.0 + u) * inside[name] for name, g in gradients.items()}

    def _cost(self, request: Request) -> Cost:
        args = request.args
        x, weight, size = args["x"], args["weight"], args["x"].dtype.itemsize
        shape = self.shape(args)
        written, filters = math.prod(shape), shape[1]
        each = x.numel * weight.shape[1] if self.transposed else written * weight.shape[1]
        products = 2.0 * each * math.prod(weight.shape[2:])
        if request.pass_ == "backward":
            read = (written + x.numel + weight.numel) * size
            return Cost(2.0 * products + written, 0.0, read, (x.numel + weight.numel + filters) * size)
        has_bias = args.get("bias") is not None
        read = x.nbytes + weight.nbytes + filters * size * has_bias
        return Cost(products + written * has_bias, 0.0, read, written * size)

    def _dims(self, request: Request) -> dict[str, int]:
        """Those of the product: positions, filters of a group, and what is added up."""
        shape, groups = self.shape(request.args), request.args["groups"]
        terms = self._terms(request.args)
        return {"M": math.prod(shape) // shape[1], "N": shape[1] // groups, "K": terms, "groups": groups}

    def _bucket(self, request: Request) -> dict[str, Any]:
        """What makes another computation of the same product: the window, and how what it slides over lies."""
        grid, x = self.call_of(request.args).grid, request.args["x"]
        last = x.stride[1] == 1 and x.stride[-1] != 1
        return {"window": (grid.size, grid.stride, grid.padding, grid.dilation), "channels_last": last}

    # ------------------------------------------------------------ the op

    def op(self) -> Op:
        made = schema_of(self.arguments)
        numbers = ", ".join(f"{kind.schema} {n}" for n, kind in self.arguments.items() if n not in RETURNS)
        op = Op(
            self.contract, self._kernels(), op_package=self.op_package,
            forward=Pass(f"{self.name}({made}, str? op_kernel=None) -> Tensor", self._fake),
            backward=Pass(
                f"{self.name}_backward(Tensor grad_output, Tensor x, Tensor weight, {numbers}, bool[] needs, "
                "str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
                lambda grad, x, weight, *rest: _gradients(grad, x, weight, rest[-1]),
                returns=RETURNS,
                reads={"x": ("weight", "grad_output"), "weight": ("x", "grad_output"), "bias": ("grad_output",)},
            ),
            composite=self.composite, mutants=convolution_mutants(self),
        )  # fmt: skip
        op.template = self
        TorchSignature(op, self.function, self._ours(), {"input": "x"})
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        kind = "a" if self.transposed else "a transposed"
        gradient = f"of x {kind} convolution of what flows in; of weight and bias sums"
        return {"gradient": gradient, "kernels": "scalar, avx2, avx512: simd/window.hpp, triton: conv/triton.py"}

    def _ours(self) -> Callable[..., tuple[Any, ...] | str]:
        """A function with the signature of torch's."""
        dims = self.dims

        def transposed(
            input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
            groups: Any = 1, dilation: Any = 1,
        ) -> tuple[Any, ...] | str:  # fmt: skip
            return input, weight, bias, stride, padding, output_padding, groups, dilation

        def plain(
            input: Any,
            weight: Any,
            bias: Any = None,
            stride: Any = 1,
            padding: Any = 0,
            dilation: Any = 1,
            groups: Any = 1,
        ) -> tuple[Any, ...] | str:
            if isinstance(padding, str):
                if padding == "valid":
                    padding = 0
                elif padding == "same" and set(ints(stride, dims)) == {1}:
                    reach = [d * (k - 1) for d, k in zip(ints(dilation, dims), weight.shape[2:], strict=False)]
                    if any(n % 2 for n in reach):
                        return "padding='same' puts more on one side than on the other here"
                    padding = tuple(n // 2 for n in reach)
                else:
                    return f"padding={padding!r} is torch's to refuse"
            return input, weight, bias, stride, padding, dilation, groups

        return transposed if self.transposed else plain

    def composite(self, *args: Any, **named: Any) -> Tensor:
        """How a user writes it. A result of a transform of torch.func lies as the transform has it: vmap asks and makes
        no other format than contiguous."""
        call = dict(zip(self.arguments, args, strict=False)) | named
        numbers = {n: ints(v, self.dims) if n != "groups" else v for n, v in call.items() if n not in RETURNS}
        made: Tensor = self.function(call["x"], call["weight"], call["bias"], **numbers)
        if is_transform_active():
            return made
        return made.contiguous(memory_format=self._format(call["x"], call["weight"]))

    def _format(self, x: Tensor, weight: Tensor) -> torch.memory_format:
        last = is_channels_last(x) or is_channels_last(weight)
        return FORMATS[x.dim()] if last else torch.contiguous_format

    def _fake(self, *args: Any) -> Tensor:
        call = self._named(*args)
        x, weight = call["x"], call["weight"]
        form = self._format(x, weight)
        return torch.empty(self.shape(call), dtype=x.dtype, device=x.device, memory_format=form)

    # ------------------------------------------------------------ launches

    def _kernels(self) -> list[Kernel]:
        back = self._torch_backward
        return [
            table_triton_kernel(self.folder, self.name),
            *cpp_kernels(self.folder, forward=self._forward, backward=self._backward, targets=TARGETS),
            python_kernel(
                "torch", lambda *args, out=None: into(self.composite(*args), out), functools.partial(back, None)
            ),
            python_kernel("reference", in_float64(self.reference), functools.partial(back, torch.float64)),
        ]

    def _torch_backward(
        self, compute: torch.dtype | None, grad: Tensor, x: Tensor, weight: Tensor, *args: Any, out: Any = None
    ) -> Any:
        """torch's own operator, which is differentiable again."""
        *numbers, needs = args
        call = self.call_of(self._named(x, weight, None, *numbers))
        grid = call.grid
        filters = weight.shape[1] * call.groups if self.transposed else weight.shape[0]
        wide = [t.to(compute or t.dtype) for t in (grad, x, weight)]
        found = torch.ops.aten.convolution_backward(
            *wide, [filters], grid.stride, grid.padding, grid.dilation, self.transposed, call.output_padding,
            call.groups, needs,
        )  # fmt: skip
        likes = (x, weight, found[2])
        made = tuple(
            x.new_empty(0) if g is None else _laid_out(g.to(x.dtype), t) for g, t in zip(found, likes, strict=True)
        )
        return into(made, out)

    def _forward(self, lib: Any, *args: Any, out: Any = None) -> Tensor:
        call = self._named(*args)
        x, weight, bias = call["x"], call["weight"], call["bias"]
        output: Tensor = self._fake(*args) if out is None else out
        grid, _, groups = self.call_of(call)
        filters = packed_filters(weight.float(), groups, self.transposed)
        _convolve(lib, output, x, filters, None if bias is None else bias.float().contiguous(), grid, self.transposed)
        return output

    def _backward(self, lib: Any, grad: Tensor, x: Tensor, weight: Tensor, *args: Any, out: Any = None) -> Any:
        *numbers, needs = args
        grid, _, groups = self.call_of(self._named(x, weight, None, *numbers))
        made = _gradients(grad, x, weight, needs) if out is None else out
        if needs[0]:
            filters = packed_filters(weight.float(), groups, not self.transposed)
            _convolve(lib, made[0], grad, filters, None, grid, not self.transposed)
        if needs[1]:
            slid, flow = (grad, x.contiguous()) if self.transposed else (x, grad.contiguous())
            total = torch.zeros(filters_shape(weight, groups), dtype=torch.float32)
            if flow.numel():
                run, threads = choose_threads(lib.filters_gradient, flow.numel() * total.shape[2] / PRODUCTS)
                run(total, volume(flow), volume(slid), None, *grid.numbers, groups, threads)
            made[1].copy_(total.reshape(weight.shape))
        if needs[2]:
            made[2].copy_(grad.sum((0, *range(2, grad.dim())), dtype=torch.float32))
        return made


def _laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient that lies as one that is made like its tensor."""
    strides = torch.empty_like(like, device="meta").stride()
    if gradient.stride() == strides:
        return gradient
    return gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)


def filters_shape(weight: Tensor, groups: int) -> tuple[int, int, int]:
    """Groups, filters of one, and the terms of each."""
    return groups, weight.shape[0] // groups, math.prod(weight.shape[1:])


def packed_filters(weight: Tensor, groups: int, transposed: bool) -> Tensor:
    """[groups, outputs, inputs and taps] of filters [filters, channels, ...]; transposed, channels are the outputs."""
    filters: Tensor = weight.flatten(2).unflatten(0, (groups, -1))
    return (filters.transpose(1, 2) if transposed else filters).flatten(2).contiguous()


def _convolve(
    lib: Any, output: Tensor, x: Tensor, filters: Tensor, bias: Tensor | None, grid: Grid, transposed: bool
) -> None:
    if not output.numel():
        return
    run, threads = choose_threads(lib.convolve, output.numel() * filters.shape[2] / PRODUCTS)
    run(volume(output), volume(x), filters, bias, *grid.numbers, filters.shape[0], transposed, threads)


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, needs: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors for the gradients, in the formats of what they are gradients of; those that nobody asks for are empty."""
    return (
        torch.empty_like(x) if needs[0] else x.new_empty(0),
        torch.empty_like(weight) if needs[1] else x.new_empty(0),
        x.new_empty(grad.shape[1] if needs[2] else 0),
    )


def triton_functions(entry: Convolution, launches: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The forward and the backward of an entry on a GPU, by its ``Convolve`` of conv's ``triton.py``."""

    def filters(weight: Tensor, groups: int, transposed: bool) -> Tensor:
        held: Tensor = packed_filters(weight, groups, transposed).unflatten(2, (-1, math.prod(weight.shape[2:])))
        return held

    def forward(*args: Any, out: Any = None) -> Any:
        call = dict(zip(entry.arguments, args, strict=True))
        grid, _, groups = entry.call_of(call)
        output = entry._fake(*args) if out is None else out
        held = filters(call["weight"], groups, entry.transposed)
        launches.convolve(volume(output), volume(call["x"]), held, call["bias"], grid, entry.transposed)
        return output

    def backward(grad: Tensor, x: Tensor, weight: Tensor, *args: Any, out: Any = None) -> Any:
        *numbers, needs = args
        grid, _, groups = entry.call_of(dict(zip(entry.arguments, (x, weight, None, *numbers), strict=True)))
        made = _gradients(grad, x, weight, needs) if out is None else out
        if needs[0]:
            held = filters(weight, groups, not entry.transposed)
            launches.convolve(volume(made[0]), volume(grad), held, None, grid, not entry.transposed)
        if needs[1]:
            slid, flow = (grad, x) if entry.transposed else (x, grad)
            total = torch.zeros(
                (*filters_shape(weight, groups)[:2], weight.shape[1], math.prod(weight.shape[2:])),
                dtype=torch.float32, device=x.device,
            )  # fmt: skip
            if flow.numel():
                launches.filters(total, volume(flow), volume(slid), grid)
            made[1].copy_(total.reshape(weight.shape))
        if needs[2]:
            made[2].copy_(grad.sum((0, *range(2, grad.dim())), dtype=torch.float32))
        return made

    return forward, backward
