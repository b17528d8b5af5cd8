"""What adaptive_max_pool1d, adaptive_max_pool2d and adaptive_max_pool3d promise: an entry each.

Windows, arguments and cases are those of the means (``adaptive_avg_pool``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, into, table_triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, check_of, errors_of, schema_of
from kernelworks.contract.int_tuple import IntTuple, ints
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.contract.window_grid import DIMENSIONS, in_format, is_channels_last, memory_format, volume
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.ops.pooling.adaptive_avg_pool.contract import DEVICE_SIZES, PLACES, TARGETS, AdaptivePool, longest
from kernelworks.templates.mutants import generic
from kernelworks.templates.op_package import OpTable
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["TABLE", "AdaptiveMaxPool"]

BF16, F32 = torch.bfloat16, torch.float32
U32 = UNIT_ROUNDOFF[torch.float32]
NANOSECONDS = 0.5  # about what an element takes one thread
MOST = 2**31 - 1  # elements of a channel: their indices are 32 bits of a vector


@dataclass(frozen=True, kw_only=True)
class AdaptiveMaxPool(AdaptivePool):
    """The largest element of windows that follow from the size of the output, and where it stands."""

    @functools.cached_property
    def name(self) -> str:
        return f"adaptive_max_pool{self.dims}d"

    @functools.cached_property
    def arguments(self) -> Arguments:
        names = DIMENSIONS[self.dims]
        where = tuple(f"{name} >= 1" for name in ("C", *names.split()))
        x = T(f"B C {names}", where=where)
        return {"x": x, "output_size": IntTuple(self.dims, 1), "return_indices": Flag()}

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """What an entry promises."""
        check = check_of(self.arguments, {"return_indices": False})
        return Contract(
            name=self.name, family=self.folder.parent.name,
            formula="output[o] = max of x[floor(o N / O)], ..., x[ceil((o + 1) N / O) - 1] along each of "
            + DIMENSIONS[self.dims] + "; indices = where it stands", source=f"torch.nn.functional.{self.name}",
            outputs=("output", "indices"),
            results={"indices": Result(torch.int64, shape=self._shape, when="return_indices")}, differentiable=("x",),
            check=check, reference=self.reference, bound=self._bound, gradient_bound=self._gradient_bound,
            cost=self._cost, dims=self._dims, bucket=self._bucket, cases=tuple(self._cases()),
            bench_cases=tuple(_with_indices(self._timed(F32, 1), False)),
            device_cases=tuple(
                _with_indices((self._case(4, 6, *DEVICE_SIZES[self.dims], last) for last in (False, True)), True)
            ),
            device_bench_cases=tuple(_with_indices(self._timed(BF16, 16), False)), errors=errors_of(self.arguments),
        )  # fmt: skip

    def _shape(self, args: Mapping[str, Any]) -> tuple[int, ...]:
        return (*args["x"].shape[:2], *self.sizes(args))

    def reference(self, x: Tensor, output_size: Any, return_indices: bool = False) -> tuple[Tensor, ...]:
        """torch's own, which says what of equals and of NaN is taken."""
        made = self.function(x.contiguous(), ints(output_size, self.dims), return_indices)
        return tuple(made) if return_indices else (made,)

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(o.shape, dtype=torch.float64, device=o.device) for o in outputs)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """A sum over the windows that an element is the largest of."""
        with torch.enable_grad():
            x = args["x"].detach().clone().requires_grad_()
            output = self.reference(x, args["output_size"])[0]
            (terms,) = torch.autograd.grad(output, x, grads[0].abs(), retain_graph=True)
            (count,) = torch.autograd.grad(output, x, torch.ones_like(output))
        inside = U32 * (count - 1.0).clamp(min=0.0) * terms
        return {"x": torch.where(count > 0, rounding(gradients["x"], dtype) + 1.01 * inside, 0.0)}

    def _cost(self, request: Request) -> Cost:
        x = request.args["x"]
        made = math.prod(self._shape(request.args))
        flop = float(made * math.prod(map(longest, x.shape[2:], self.sizes(request.args))))
        if request.pass_ == "backward":
            return Cost(flop, 0.0, x.nbytes + made * x.dtype.itemsize, x.nbytes)
        return Cost(flop, 0.0, x.nbytes, made * (x.dtype.itemsize + 8 * bool(request.args["return_indices"])))

    # ------------------------------------------------------------ cases

    def _cases(self) -> Iterator[Case]:
        yield from _with_indices(AdaptivePool._cases(self), True)
        sizes, outputs = PLACES[self.dims][1]
        for last in (False, True)[: min(self.dims, 2)]:
            yield from _with_indices([self._case(2, 19, sizes, outputs, last)], False)
            for to in (outputs, (1,) * self.dims):
                yield self._ties(sizes, to, last, False)
                yield self._ties(sizes, to, last, True)

    def _ties(self, sizes: tuple[int, ...], outputs: tuple[int, ...], last: bool, special: bool) -> Case:
        """Many equal elements in a window, zeros of either sign; if ``special`` several NaN and infinities, too."""

        def make(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
            drawn = torch.randint(-2, 3, (2, 9, *sizes), generator=generator)
            x = torch.where(torch.rand(drawn.shape, generator=generator) < 0.5, drawn.to(dtype), -drawn.to(dtype))
            if special:
                chosen = torch.randint(0, 12, drawn.shape, generator=generator)
                for number, value in enumerate((torch.nan, torch.nan, torch.inf)):
                    x[chosen == number] = value
                x[0, 0] = -torch.inf  # windows of nothing else
            return {"x": in_format(x, last), "output_size": outputs, "return_indices": True}

        said = "NaN and infinities" if special else "few values"
        name = f"{said}, {'x'.join(map(str, sizes))} to {'x'.join(map(str, outputs))}" + ", channels last" * last
        return Case(name, make, gradients=not special)

    # ------------------------------------------------------------ mutants

    def _mutants(self) -> Iterator[Mutant]:
        yield from generic(self.reference, ("x",), tuple(self.arguments), self.contract.results_in_order)

        def changed(how: Callable[[Tensor], Tensor], after: Callable[[Tensor, Tensor], Tensor] | None = None) -> Any:
            """Of another x; ``after`` changes the indices of what was found in x."""

            def run(x: Tensor, size: Any, return_indices: bool) -> Any:
                output, *found = self.reference(how(x.double()), size, return_indices)
                if not found:
                    return output.to(x.dtype)
                return output.to(x.dtype), found[0] if after is None else after(x, found[0])

            return run

        def last_of_equals(x: Tensor, size: Any, return_indices: bool) -> Any:
            """Found from the other end."""
            dims = tuple(range(2, x.dim()))
            made = self.reference(x.double().flip(dims), size, return_indices)
            whole = x.shape[2:].numel() - 1
            output, *found = (t.flip(dims) for t in made)
            return (output.to(x.dtype), whole - found[0]) if found else output.to(x.dtype)

        def shut(x: Tensor) -> Tensor:
            without = x.clone()
            without[..., -1] = torch.finfo(torch.float64).min
            return without if x.shape[-1] > 1 else x

        def same(x: Tensor) -> Tensor:
            return x

        yield Mutant("turned", changed(lambda x: x.flip(-1)), "the last dimension is read from the other end")
        yield Mutant("first of the batch", changed(lambda x: x[:1].expand_as(x)), "one for the batch")
        yield Mutant("last element missing", changed(shut), "the last element of each line is left out")
        yield Mutant("magnitudes", changed(torch.abs), "the sign is lost")
        yield Mutant("the last of equals", last_of_equals, "of equal elements the last is named, of NaN the first")
        yield (
            Mutant("index in a line", changed(same, lambda x, i: i % x.shape[-1]), "indices count the last dimension")
            if self.dims > 1
            else Mutant("index aside", changed(same, lambda x, i: i + 1), "indices from 1")
        )
        yield Mutant("32 bits of 8", changed(same, lambda x, i: i % 8), "indices wrap around")

    # ------------------------------------------------------------ the op

    def op(self) -> Op:
        made = schema_of(self.arguments)
        forward = Pass(f"{self.name}({made}, str? op_kernel=None) -> (Tensor, Tensor)", self._fake)
        backward = Pass(
            f"{self.name}_backward(Tensor grad_output, {made}, str? op_kernel=None) -> Tensor",
            lambda grad, x, *others: x.new_empty(x.shape), returns=("x",), reads={"x": ("grad_output", "x")},
        )  # fmt: skip
        op: Op = Op(
            self.contract,
            [
                *self._kernels(),
                *python_kernels(
                    self.contract, forward, backward, self.composite, lambda: op, torch_backward=self._backward_of_torch
                ),
            ],
            op_package=self.op_package, forward=forward, backward=backward, composite=self.composite,
            mutants=tuple(self._mutants()),
            # torch wants a fixed number of outputs: without indices the second one is empty.
            to_torch=lambda result, x, *args: result if args[-1] else (result, x.new_empty(0, dtype=torch.int64)),
            from_torch=lambda result, x, *args: result if args[-1] else result[0],
        )  # fmt: skip
        op.template = self

        def ours(input: Any, output_size: Any, return_indices: bool = False) -> tuple[Any, ...] | str:
            if isinstance(output_size, (list, tuple)):
                if len(output_size) != self.dims:
                    return f"output_size is one number or {self.dims}"
                if None in output_size and self.dims == 1:
                    return "torch's of lines takes no None"
                sizes = zip(input.shape[2:], output_size, strict=False)
                output_size = [own if n is None else n for own, n in sizes]  # a dimension that stays as it is
            return input, output_size, return_indices

        TorchSignature(op, self.function, ours, {"input": "x"})
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What ``kernelworks map OP`` tells of an entry."""
        return {"gradient": "what flows into each window, at its largest element"}

    def composite(self, x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        made = self.function(x, ints(output_size, self.dims), return_indices)
        if self.dims == 2:
            return tuple(made) if return_indices else made
        return tuple(t.contiguous() for t in made) if return_indices else made.contiguous()

    def _backward_of_torch(
        self, grad: Tensor, x: Tensor, output_size: Any, return_indices: bool, out: Any = None
    ) -> Any:
        """torch's own, of indices that are found again."""
        if not x.numel():
            return into(x.new_empty(x.shape), out)
        indices, flow, picture = self.function(x.contiguous(), ints(output_size, self.dims), True)[1], grad, x
        if self.dims == 1:  # that of a picture of one row
            indices, flow, picture = indices.unsqueeze(2), flow.unsqueeze(2), picture.unsqueeze(2)
        aten = torch.ops.aten
        back = aten.adaptive_max_pool3d_backward if self.dims == 3 else aten.adaptive_max_pool2d_backward
        return into(back(flow.contiguous(), picture.contiguous(), indices).reshape(x.shape).contiguous(), out)

    def _empty(self, x: Tensor, output_size: Any, dtype: torch.dtype) -> Tensor:
        """Where a result goes, which lies as torch's does."""
        form = memory_format(x) if self.dims == 2 else torch.contiguous_format
        shape = (*x.shape[:2], *ints(output_size, self.dims))
        return torch.empty(shape, dtype=dtype, device=x.device, memory_format=form)

    def _fake(self, x: Tensor, output_size: Any, return_indices: bool) -> Any:
        none = x.new_empty(0, dtype=torch.int64)
        output = self._empty(x, output_size, x.dtype)
        return output, self._empty(x, output_size, torch.int64) if return_indices else none

    # ------------------------------------------------------------ launches

    def outputs(self, x: Tensor, output_size: Any, return_indices: bool, out: Any) -> tuple[Tensor, Tensor | None]:
        """Where results go."""
        if out is not None:
            return tuple(out) if return_indices else (out, None)
        made = self._fake(x, output_size, return_indices)
        return made[0], made[1] if return_indices else None

    def _kernels(self) -> list[Kernel]:
        return [
            table_triton_kernel(self.folder, self.name),
            *cpp_kernels(
                self.folder, forward=_forward_of(self), backward=_backward, targets=TARGETS, guard=_decline_size
            ),
        ]


def _with_indices(cases: Any, wanted: bool) -> Iterator[Case]:
    """The cases of means, which say nothing of indices; gradients where no two elements are nearly equal."""
    for case in cases:
        make = functools.partial(_make_with, case.make, wanted)
        yield dataclasses.replace(case, make=make, name=case.name + ", no indices" * (not wanted))


def _make_with(
    make: Callable[..., dict[str, Any]], wanted: bool, generator: torch.Generator, dtype: torch.dtype
) -> dict[str, Any]:
    return make(generator, dtype) | {"return_indices": wanted}


def _decline_size(request: Request) -> str | None:
    count = math.prod(request.args["x"].shape[2:])
    return f"takes up to {MOST} elements a channel, got {count}" if count > MOST else None


def _forward_of(pool: AdaptiveMaxPool) -> Callable[..., Any]:
    def forward(lib: Any, x: Tensor, output_size: Any, return_indices: bool, out: Any = None) -> Any:
        output, indices = pool.outputs(x, output_size, return_indices, out)
        channels = is_channels_last(x) and is_channels_last(output)
        wide, to = volume(x), volume(output)
        where = None if indices is None else volume(indices)
        if where is not None and where.stride() != to.stride():  # of an out that lies otherwise
            where = torch.empty_like(to, dtype=torch.int64)
        if not channels:
            if wide.stride(4) != 1:
                wide = wide.contiguous()
            if to.shape[2:].numel() == 1 and wide.is_contiguous():  # each channel is one window, and one row
                wide = wide.view(*wide.shape[:2], 1, 1, -1)
        run, threads = choose_threads(lib.adaptive_max_pool, NANOSECONDS * x.numel())
        run(to, where, wide, channels, threads)
        if indices is None:
            return output
        if where is not None and where.data_ptr() != indices.data_ptr():
            indices.copy_(where.reshape(indices.shape))
        return output, indices

    return forward


def _backward(
    lib: Any, grad: Tensor, x: Tensor, output_size: Any, return_indices: bool, out: Tensor | None = None
) -> Tensor:
    made = torch.empty(x.shape, dtype=x.dtype)
    wide = volume(x) if volume(x).stride(4) == 1 else volume(x).contiguous()
    run, threads = choose_threads(lib.adaptive_max_pool_backward, NANOSECONDS * x.numel())
    run(volume(made), volume(grad.contiguous()), wide, threads)
    result: Tensor = made if out is None else into(made, out)
    return result


TABLE = OpTable.of([AdaptiveMaxPool(op_package=__file__, dims=dims) for dims in (1, 2, 3)])
