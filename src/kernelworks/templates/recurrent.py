"""The recurrent template: layers whose cell reads an input and its own last state, step after step.

``NAME(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0[, c_0], reverse) -> output, h_n[, c_n]``: one layer in one
direction. An op package says in ``contract.py`` what only it knows (``Recurrent``: its cell, an expression of tensors),
in ``recurrent.cpp`` the cell in C++ (``simd/recurrent.hpp``), in ``triton.py`` the same for a tile
(``tile/recurrent.py``). What follows from that is made here: the definition, the bound, which is the cell's own
expression on ``Inexact`` values run along the sequence, cases, mutants, launches and the op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import as_float64, cpp_kernels, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Case, Contract, Cost, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, check_of, errors_of, schema_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.continuation import Continuation
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.op import Op, Pass
from kernelworks.templates.inexact import Inexact
from kernelworks.templates.mutants import generic
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.product import gamma
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["Recurrent", "gates_of"]

BF16, F32 = torch.bfloat16, torch.float32
TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "recurrent.cpp")
WIDTH = 16  # units of the widest vectors that op packages are compiled for
FEW = 3  # steps up to which weights are read as they lie: packing them takes as long as some steps
NANOSECONDS = 0.02  # about what a product of a step takes one thread of a CPU

Values = tuple[Any, ...]
Cell = Callable[[Values, Values, Values], Values]


def gates_of(products: Tensor, count: int) -> tuple[Tensor, ...]:
    """[.., gates H] as so many [.., H]."""
    made: tuple[Tensor, ...] = products.unflatten(-1, (count, -1)).unbind(-2)
    return made


@dataclass(frozen=True, kw_only=True)
class Recurrent(OpPackage):
    """What only the op package knows of a recurrent layer.

    ``op_package`` is the op package's ``__file__``: folder and family name the op. ``gates`` are a unit's products, as
    torch has them one behind the other; ``states`` names what runs along the sequence, the output ("h") first.
    ``cell(x, h, states)`` gives the states behind a step, of each gate's product with the input and with the state, by
    operators and methods of tensors that ``Inexact`` has. ``reference`` has the arguments' names and calls ``run``.
    ``function`` is torch's for a whole layer (``torch.lstm``). ``elementary`` counts elementary functions a unit.
    """

    formula: str
    source: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    cell: Cell
    reference: Callable[..., tuple[Tensor, ...]]
    function: Callable[..., Any]
    elementary: float

    # ------------------------------------------------------------ arguments

    @functools.cached_property
    def arguments(self) -> Arguments:
        states: Arguments = {f"{s}_0": T("B H", like="x", optional=True) for s in self.states}
        many = f"G == {len(self.gates)} * H" if len(self.gates) > 1 else "G == H"
        return {
            "x": T("T B I", where=("I >= 1",)),
            "weight_ih": T("G I", like="x", where=(f"divides({len(self.gates)}, G)", "G >= 1")),
            "weight_hh": T("G H", like="x", where=(many,)),
            "bias_ih": T("G", like="x", optional=True),
            "bias_hh": T("G", like="x", optional=True),
            **states,
            "reverse": Flag(),
        }

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("output", *(f"{s}_n" for s in self.states))

    @property
    def differentiable(self) -> tuple[str, ...]:
        return tuple(name for name in self.arguments if name != "reverse")

    def _apart(self, args: Sequence[Any]) -> tuple[Tensor, list[Any], Tensor, Tensor, Any, Any, bool]:
        """x, the first states, both weights, both biases, reverse, of the arguments in their order."""
        x, weight_ih, weight_hh, bias_ih, bias_hh, *first, reverse = args
        return x, first, weight_ih, weight_hh, bias_ih, bias_hh, reverse

    # ------------------------------------------------------------ the definition

    def run(self, args: Sequence[Any], cell: Cell | None = None, before: Any = None) -> tuple[Tensor, ...]:
        """The layer step by step, in the tensors' dtype. ``before(t, states, first)`` changes the states ahead of a
        step: for mutants."""
        x, first, weight_ih, weight_hh, bias_ih, bias_hh, reverse = self._apart(args)
        shape, count = (x.shape[1], weight_hh.shape[1]), len(self.gates)
        given = tuple(x.new_zeros(shape) if s is None else s for s in first)
        states: Values = given
        inputs = torch.nn.functional.linear(x, weight_ih, bias_ih)
        made = []
        for i, t in enumerate(reversed(range(x.shape[0])) if reverse else range(x.shape[0])):
            states = states if before is None else before(i, states, given)
            own = torch.nn.functional.linear(states[0], weight_hh, bias_hh)
            states = (cell or self.cell)(gates_of(inputs[t], count), gates_of(own, count), states)
            made.append(states[0])
        output = torch.stack(made[::-1] if reverse else made) if made else x.new_zeros((0, *shape))
        return (output, *(s.clone() for s in states))

    # ------------------------------------------------------------ the bound

    def _bound(
        self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, inner: str = "float32"
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The cell's expression on ``Inexact`` products and states. A product of n terms is off by gamma(n) of their
        magnitudes and by what the state is off, which the weights' magnitudes carry on. ``inner="input"``: the output
        of each step is rounded to the dtype before the next one reads it."""
        x, first, weight_ih, weight_hh, bias_ih, bias_hh, reverse = self._apart([args[n] for n in self.arguments])
        count, terms = len(self.gates), x.shape[2] + weight_hh.shape[1] + 4
        smallest = 2.0**-149 * terms

        def product(a: Inexact, weight: Tensor, bias: Tensor | None) -> tuple[Inexact, ...]:
            value = torch.nn.functional.linear(a.value, weight, bias)
            size = (a.value.abs() + a.error) @ weight.abs().mT + (0.0 if bias is None else bias.abs())
            off = a.error @ weight.abs().mT + gamma(terms) * size + smallest
            return tuple(map(Inexact, gates_of(value, count), gates_of(off, count)))

        zero = x.new_zeros((x.shape[1], weight_hh.shape[1]))
        states: Values = tuple(Inexact(zero if s is None else s) for s in first)
        off = torch.zeros_like(outputs[0])
        for t in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
            states = self.cell(
                product(Inexact(x[t]), weight_ih, bias_ih), product(states[0], weight_hh, bias_hh), states
            )
            off[t] = states[0].error
            if inner == "input":
                h = states[0]
                states = (Inexact(h.value, h.error + rounding(h.value, dtype)), *states[1:])
        last = (rounding(value, dtype) * bool(x.shape[0]) + _finite(s.error)
                for value, s in zip(outputs[1:], states, strict=True))  # fmt: skip
        return (rounding(outputs[0], dtype) + _finite(off), *last)

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        return Contract(
            name=self.name, family=self.folder.parent.name, formula=self.formula, source=self.source,
            outputs=self.outputs, differentiable=self.differentiable, arithmetic="products",
            check=check_of(self.arguments), reference=self.reference, bound=self._bound, cost=self._cost,
            dims=_dims, bucket=_bucket, cases=tuple(self._cases()), errors=errors_of(self.arguments),
            bench_cases=tuple(self.case(*sizes, dtypes=(dtype,)) for sizes, dtype in BENCH),
            device_cases=tuple(self.case(*sizes, gradients=False) for sizes in DEVICE),
            device_bench_cases=tuple(self.case(*sizes, dtypes=(BF16,)) for sizes in DEVICE_BENCH),
            continuation=Continuation(
                state={f"{s}_0": f"{s}_n" for s in self.states}, along={"x": 0, "output": 0}
            ),
            results={name: Result(shape=functools.partial(_shape, name)) for name in self.outputs},
        )  # fmt: skip

    def _cost(self, request: Request) -> Cost:
        x, weight_hh = request.args["x"], request.args["weight_hh"]
        units = float(x.shape[0] * x.shape[1] * weight_hh.shape[1])
        flop = 2.0 * units * len(self.gates) * (x.shape[2] + weight_hh.shape[1] + 1)
        read = sum(t.nbytes for t in request.tensors)
        if request.pass_ == "backward":
            return Cost(2.0 * flop, 0.0, read, read)
        written = (units + len(self.states) * x.shape[1] * weight_hh.shape[1]) * x.dtype.itemsize
        return Cost(flop, self.elementary * units, read, written)

    # ------------------------------------------------------------ cases

    def case(
        self, steps: int, batch: int, inputs: int, units: int, name: str = "", *, kind: str = "normal",
        reverse: bool = False, without: tuple[str, ...] = (), weight: float = 1.0, **more: Any,
    ) -> Case:  # fmt: skip
        """A call of these sizes, drawn as torch's modules are; ``without`` names arguments that are None."""

        def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
            rows, scale = len(self.gates) * units, weight * max(units, 1) ** -0.5
            args: dict[str, Any] = {"x": draw(kind, generator, dtype, steps, batch, inputs)}
            args |= {f"{s}_0": normal(generator, dtype, batch, units, scale=0.5) for s in self.states}
            args["weight_ih"] = normal(generator, dtype, rows, inputs, scale=scale)
            args["weight_hh"] = normal(generator, dtype, rows, units, scale=scale)
            args |= {f"bias_{of}": normal(generator, dtype, rows, scale=scale) for of in ("ih", "hh")}
            return args | {"reverse": reverse} | dict.fromkeys(without)

        calls = more.get("calls", ())
        said = [f"T={steps} B={batch} I={inputs} H={units}", *([kind] if kind != "normal" else []), name]
        said += ["reverse"] * reverse + [f"without {' and '.join(without)}"] * bool(without)
        said += [f"in calls of {'+'.join(map(str, calls))}"] * bool(calls)
        return Case(", ".join(filter(None, said)), make, **more)

    def _cases(self) -> Iterator[Case]:
        first = tuple(f"{s}_0" for s in self.states)
        for steps in (0, 1, 2, FEW, FEW + 1, 5, 17, 33):
            yield self.case(steps, 2, 5, 17, layouts=steps in (1, 5), gradients=steps < 10)
        for i, units in enumerate((1, 3, 7, 8, 15, 16, 31, 33, 64, 65, 130)):
            yield self.case(6, 3, 1 + units // 2, units, reverse=i % 2 == 1, gradients=units < 40)
        for batch in (0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 33):
            yield self.case(5, batch, 3, 20, reverse=batch == 3, layouts=batch == 7, gradients=batch < 6)
        for inputs in (1, 16, 33, 100):
            yield self.case(4, 2, inputs, 1 if inputs == 1 else 12)
            yield self.case(1, 1, inputs, 1 if inputs == 1 else 40)
        for kind in ("large_mean", "tiny", "huge", "subnormal", "constant", "zeros", "inf", "negative_inf", "nan"):
            for steps in (2, 6):
                yield self.case(steps, 3, 7, 20, kind=kind, gradients=kind in ("tiny", "constant"))
        for without in (*((s,) for s in first), first, ("bias_ih",), ("bias_hh",), ("bias_ih", "bias_hh")):
            yield self.case(5, 3, 4, 18, without=without)
            yield self.case(2, 3, 4, 18, without=without, reverse=True, gradients=False)
        yield self.case(0, 3, 4, 18, without=first)
        yield self.case(6, 3, 8, 24, "gates that close", weight=12.0, gradients=False)
        yield self.case(6, 3, 8, 24, "small weights", weight=0.02)
        yield self.case(130, 2, 8, 16, gradients=False, dtypes=(F32,))
        yield self.case(5, 40, 60, 200, gradients=False)  # several threads
        for calls in ((5, 4), (20, 1, 1, 1), (1,) * 6, (7, 0, 9, 2), (3, 4, 2)):
            yield self.case(sum(calls), 3, 6, 20, calls=calls, gradients=False, dtypes=(F32,))

    # ------------------------------------------------------------ mutants

    def mutant(self, name: str, why: str, cell: Cell | None = None, **how: Any) -> Mutant:
        """The definition in float64 with another cell, states changed ``before`` a step, other arguments (``given``,
        of a list of them), or other results (``then``, of results and arguments)."""
        before, given, then = how.get("before"), how.get("given"), how.get("then")

        def run(*args: Any) -> Any:
            exact = as_float64(list(args))
            made = self.run(exact if given is None else given(list(exact)), cell, before)
            if then is not None:
                made = then(made, exact)
            return tuple(t.to(args[0].dtype) for t in made)

        return Mutant(name, run, why)

    def _mutants(self) -> Iterator[Mutant]:
        """What any recurrent layer gets wrong."""
        yield from generic(self.reference, ("x",), tuple(self.arguments), self.contract.results_in_order)
        at = {name: i for i, name in enumerate(self.arguments)}
        bias_ih, bias_hh, weight, reverse = (at[n] for n in ("bias_ih", "bias_hh", "weight_hh", "reverse"))

        def every(length: int, change: Callable[[Values, Values], Values]) -> Callable[[int, Values, Values], Values]:
            return lambda t, states, first: change(states, first) if t and t % length == 0 else states

        def put(place: int, change: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
            return lambda args: [*args[:place], change(args[place]), *args[place + 1 :]]

        def of_each(change: Callable[[Tensor], Tensor]) -> Callable[[Values, Values], Values]:
            return lambda states, first: tuple(map(change, states))

        def late(made: tuple[Tensor, ...], args: list[Any]) -> tuple[Tensor, ...]:
            """The last step is not in the states."""
            kept = slice(1, None) if args[reverse] else slice(-1)
            return (made[0], *self.run([args[0][kept], *args[1:]])[1:])

        def in_order_of_steps(made: tuple[Tensor, ...], args: list[Any]) -> tuple[Tensor, ...]:
            return (made[0].flip(0) if args[reverse] else made[0], *made[1:])

        def turned(w: Tensor) -> Tensor:
            made: Tensor = w.unflatten(0, (len(self.gates), -1)).mT.flatten(0, 1)
            return made

        def missing_unit(w: Tensor) -> Tensor:
            return torch.cat((w[:, :-1], torch.zeros_like(w[:, -1:])), 1)

        yield self.mutant("carry lost", "each 4 steps start from nothing", before=every(4, of_each(torch.zeros_like)))
        yield self.mutant("first again", "each 4 steps start from the first states", before=every(4, lambda s, f: f))
        yield self.mutant("bfloat16 states", "states are carried in bfloat16",
                          before=every(1, of_each(lambda s: s.bfloat16().double())))  # fmt: skip
        yield self.mutant("one sequence's states", "each sequence goes on from the first one's",
                          before=every(1, of_each(lambda s: s[:1].expand_as(s))))  # fmt: skip
        for s in self.states:
            yield self.mutant(f"no {s}_0", f"the first {s} is lost", given=put(at[f"{s}_0"], lambda v: None))
        yield self.mutant("bias_ih missing", "the input's bias is not added", given=put(bias_ih, lambda v: None))
        yield self.mutant("bias_hh missing", "the state's bias is not added", given=put(bias_hh, lambda v: None))
        yield self.mutant("forward alone", "reverse is not looked at", given=put(reverse, lambda v: False))
        yield self.mutant("backward alone", "always from the end", given=put(reverse, lambda v: True))
        yield self.mutant(
            "last unit missing", "the state's last unit is not multiplied", given=put(weight, missing_unit)
        )
        yield self.mutant("weights turned", "each gate's weights are read the wrong way", given=put(weight, turned))
        yield self.mutant("step before", "the last step is not in the states", then=late)
        yield self.mutant("order of steps", "a reversed call's outputs are in the order of its steps",
                          then=in_order_of_steps)  # fmt: skip

    # ------------------------------------------------------------ launches

    def _forward(self, lib: Any, *args: Any, out: Any = None) -> tuple[Tensor, ...]:
        x, first, weight_ih, weight_hh, bias_ih, bias_hh, reverse = self._apart(args)
        (steps, batch, _), (rows, units) = x.shape, weight_hh.shape
        made = self._empty(x, weight_hh) if out is None else out
        if not steps or not batch:
            return _unchanged(made, first)
        of_input = torch.empty(steps * batch, rows)
        product, threads = choose_threads(lib.linear, NANOSECONDS * of_input.numel() * x.shape[2])
        product(of_input, _wide(x.reshape(steps * batch, -1)), _wide(weight_ih), _wide(bias_ih), threads)
        states = [_wide(s) for s in first]
        weight_hh, bias_hh = _wide(weight_hh), _wide(bias_hh)
        cost = NANOSECONDS * batch * rows * units
        if steps > FEW:
            padded = -(-units // WIDTH) * WIDTH
            work = torch.empty(padded * rows + (len(states) + 1) * batch * units)
            run, threads = choose_threads(getattr(lib, self.name), cost * steps)
            run(*made, of_input, weight_hh, bias_hh, *states, work, reverse, threads)
            return tuple(made)
        product, threads = choose_threads(lib.linear, cost)
        step, of_state = getattr(lib, f"{self.name}_step"), torch.empty(batch, rows)
        for t in reversed(range(steps)) if reverse else range(steps):
            if states[0] is None:
                of_state.copy_(bias_hh) if bias_hh is not None else of_state.zero_()
            else:
                product(of_state, states[0], weight_hh, bias_hh, threads)
            after = [torch.empty(batch, units) for _ in states]
            step(made[0][t], *after, of_input[t * batch : (t + 1) * batch], of_state, *states, 1)
            states = after
        for to, state in zip(made[1:], states, strict=True):
            to.copy_(state)
        return tuple(made)

    def _empty(self, x: Tensor, weight_hh: Tensor) -> tuple[Tensor, ...]:
        batch, units = x.shape[1], weight_hh.shape[1]
        return (x.new_empty((x.shape[0], batch, units)), *(x.new_empty((batch, units)) for _ in self.states))

    def _native(self, *args: Any) -> tuple[Tensor, ...]:
        """torch's own layer."""
        x, first, weight_ih, weight_hh, bias_ih, bias_hh, reverse = self._apart(args)
        if not x.numel():
            return self.run(args)
        zero = x.new_zeros((1, x.shape[1], weight_hh.shape[1]))
        states = [zero if s is None else s.unsqueeze(0) for s in first]
        weights, biases = [weight_ih, weight_hh], [bias_ih, bias_hh]
        if bias_ih is not None or bias_hh is not None:
            weights += [weight_ih.new_zeros(weight_ih.shape[0]) if b is None else b for b in biases]
        train = any(isinstance(a, Tensor) and a.requires_grad for a in args)  # else cuDNN keeps nothing for a backward
        made = self.function(
            x.flip(0) if reverse else x, states if len(states) > 1 else states[0], weights, len(weights) > 2, 1, 0.0,
            train, False, False,
        )  # fmt: skip
        return (made[0].flip(0) if reverse else made[0], *(s.squeeze(0) for s in made[1:]))

    # ------------------------------------------------------------ the op

    def op(self, contract: Contract, mutants: Sequence[Mutant] = ()) -> Op:
        """The op; ``mutants`` are the op package's own."""
        said, results = schema_of(self.arguments), ", ".join(["Tensor"] * len(self.outputs))
        grads = ", ".join(f"Tensor? grad_{name}" for name in self.outputs)
        forward = Pass(
            f"{self.name}({said}, str? op_kernel=None) -> ({results})",
            lambda x, weight_ih, weight_hh, *args: self._empty(x, weight_hh),
        )

        def fake_backward(*args: Any) -> tuple[Tensor, ...]:
            given, needs = args[len(self.outputs) : -2], args[-1]
            return tuple(given[0].new_empty(t.shape if t is not None and need else 0)
                         for t, need in zip(given, needs, strict=True))  # fmt: skip

        backward = Pass(
            f"{self.name}_backward({grads}, {said}, bool[] needs, str? op_kernel=None) -> "
            f"({', '.join(['Tensor'] * len(self.differentiable))})",
            fake_backward,
            returns=self.differentiable,
        )
        op: Op = Op(
            contract,
            [
                triton_kernel(self.folder, passes=("forward",), inner="input"),
                *cpp_kernels(self.folder, forward=self._forward, targets=TARGETS),
                *python_kernels(contract, forward, backward, self._native, lambda: op),
            ],
            op_package=self.op_package, forward=forward, backward=backward,
            composite=self.reference, native=self._native, mutants=(*self._mutants(), *mutants),
        )  # fmt: skip
        op.template = self
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        return {
            "gradient": "torch's own",
            "bound": "the cell's expression on values and their errors, step after step (inexact.py)",
            "kernels": "scalar, avx2, avx512: recurrent.cpp in simd/recurrent.hpp, triton: tile/recurrent.py",
        }


def _wide(t: Any) -> Any:
    """In float32, contiguous."""
    return None if t is None else t.to(torch.float32).contiguous()


def _unchanged(made: Any, first: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Of no steps: the states as they came."""
    for to, state in zip(made[1:], first, strict=True):
        to.zero_() if state is None else to.copy_(state)
    return tuple(made)


def _finite(error: Tensor) -> Tensor:
    return torch.nan_to_num(error, nan=0.0)


def _shape(name: str, args: Any) -> tuple[int, ...]:
    batch, units = args["x"].shape[1], args["weight_hh"].shape[1]
    return (args["x"].shape[0], batch, units) if name == "output" else (batch, units)


def _dims(request: Request) -> dict[str, int]:
    steps, batch, inputs = request.args["x"].shape
    return {"T": steps, "B": batch, "I": inputs, "H": request.args["weight_hh"].shape[1]}


def _bucket(request: Request) -> dict[str, Any]:
    """A few steps are kernels of their own: weights are read as they lie."""
    steps = request.args["x"].shape[0]
    return {"T": steps} if steps <= FEW else {}


# steps, batch, inputs, units
BENCH = (
    ((128, 1, 256, 256), F32), ((64, 32, 512, 512), F32), ((1, 1, 256, 256), F32), ((32, 8, 64, 128), F32),
    ((64, 32, 512, 512), BF16),
)  # fmt: skip
DEVICE = ((9, 3, 40, 72), (20, 70, 130, 200), (2, 1, 512, 512))
DEVICE_BENCH = ((128, 1, 256, 256), (64, 32, 512, 512), (256, 256, 1024, 1024))
