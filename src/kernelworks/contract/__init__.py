"""The nouns: what an op promises (Contract) and one implementation of it (Row). The two together are an op (``op.py``).

Argument names are the same everywhere: in the public function, in the torch.library schema, in ``check``,
``reference``, ``cost`` and the cases. That is what lets one table line drive tests, fuzz, bench, docs and dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from kernelworks.contract.complex_numbers import as_parts, from_parts, is_inexact, part_dtype
from kernelworks.contract.continuation import Continuation
from kernelworks.contract.results import Result

if TYPE_CHECKING:
    from kernelworks.contract.limits import Limit

__all__ = [
    "ABSENT",
    "FLOATS",
    "INNER",
    "INT8_BY_BLOCK",
    "UNIT_ROUNDOFF",
    "Case",
    "Contract",
    "Cost",
    "Kernel",
    "Mutant",
    "Request",
    "TensorSpec",
    "Values",
    "describe",
    "need_64_bits",
    "need_dtype",
    "need_same",
    "need_tensor",
    "rounding",
    "shape_only_spec",
    "spec",
]  # fmt: skip

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

# Half the distance between 1 and the next number: the largest relative error of one rounding to nearest.
UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def rounding(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest error of rounding ``value`` (float64) to ``dtype``: u |value|, or half the smallest subnormal. Of
    complex numbers that of each part."""
    dtype = part_dtype(dtype)
    info = torch.finfo(dtype)
    parts = UNIT_ROUNDOFF[dtype] * as_parts(value).abs() + 0.5 * info.smallest_normal * 2 * UNIT_ROUNDOFF[dtype]
    return from_parts(parts, value)


# ---------------------------------------------------------------- requests


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: str

    @property
    def numel(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


def spec(value: Any) -> Any:
    """``value`` with every tensor replaced by its TensorSpec."""
    if isinstance(value, Tensor):
        return TensorSpec(tuple(value.shape), value.dtype, tuple(value.stride()), value.device.type)
    if isinstance(value, (list, tuple)):
        return tuple(spec(item) for item in value)
    return value


def shape_only_spec(value: Any) -> Any:
    """The TensorSpec of a tensor of which nothing but the shape and the dtype is kept; anything else as it is."""
    return replace(value, stride=(0,) * len(value.shape)) if isinstance(value, TensorSpec) else value


@dataclass(frozen=True)
class Request:
    """What one call asks for: the op, the pass and its arguments without data.

    The pass is ``"forward"``, ``"backward"``, or ``"training"``: a forward whose gradients with respect to the inputs
    ``wanted`` will be asked for, so that a choice of both is made. ``free`` names numbers that no choice depends on,
    ``switches`` those that a choice depends on by whether they are given. ``values`` is what was counted in the data
    (``Values``), where somebody had it: no choice depends on it, only what the call is said to cost.
    """

    op: str
    pass_: str
    args: Mapping[str, Any]
    threads: int = 1
    wanted: tuple[str, ...] = ()
    free: frozenset[str] = frozenset()
    switches: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> Iterator[TensorSpec]:
        """All of its arguments, of lists each."""
        for value in self.args.values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, TensorSpec):
                    yield item

    @property
    def top_level_tensors(self) -> Iterator[TensorSpec]:
        """Those that are no items of lists."""
        return (value for value in self.args.values() if isinstance(value, TensorSpec))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first floating-point tensor; of a complex one that of its parts."""
        return next((part_dtype(t.dtype) for t in self.tensors if is_inexact(t.dtype)), torch.float32)

    @property
    def device(self) -> str:
        return next((tensor.device for tensor in self.tensors), "cpu")


# ---------------------------------------------------------------- the contract


@dataclass(frozen=True)
class Cost:
    """What the op cannot do without: arithmetic, elementary functions, and each input read and output written once."""

    flop: float
    transcendental: float
    bytes_read: float
    bytes_written: float

    @property
    def bytes(self) -> float:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Case:
    """One input. ``make(generator, dtype)`` gives the arguments by name, in ``dtype``; the generator is seeded.

    ``layouts`` says that the input is also tried as strided, offset and unaligned views of the same values.
    ``gradients`` says that the backward is compared too (off where the derivative does not exist or overflows), with
    random numbers flowing in, or ``flow`` everywhere: 1, as ``loss.backward()`` has it, or the factor of a scaled loss.
    ``pieces``: so many drawn rows of each output and gradient are compared, where the whole would not fit the memory
    (see ``Contract.pieces``).
    ``calls``: the kernel is also tried in several calls, each on the state that came out of the one before: so many
    steps each, of a contract whose state runs over a sequence (``Contract.continuation``).
    """

    name: str
    make: Callable[..., dict[str, Any]]
    gradients: bool = True
    layouts: bool = False
    flow: float | None = None
    dtypes: tuple[torch.dtype, ...] = FLOATS
    pieces: int = 0
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Values:
    """What an op's work hangs on beside shapes. ``count(args)`` counts it in a forward's arguments, by name (a
    dimension's name: what stands in its place), and waits for a GPU. ``cost_assumption`` says what ``cost`` takes to be
    so of a request without: "if every block is named". Where that is more than a call may have to do, ``least`` are the
    values of one that does the least: what a bound goes by whose call nobody looked into."""

    count: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    assumed: str
    least: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mutant:
    """A known-wrong forward that the verification must reject. ``run(**args)`` returns what the op returns, and writes
    to what the op writes to or returns that, too. ``right_within`` names kernels (``INNER``) within whose bounds it is
    right."""

    name: str
    run: Callable[..., Any]
    why: str
    right_within: str = ""


Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Contract:
    """What the op promises. Frozen while anyone optimises the op package.

    - ``check(**args)`` raises TypeError or ValueError that names the argument, what came and what is accepted.
      It looks at shapes, dtypes and scalars only; checks of values (an id out of range) belong to the kernels' launch.
    - ``reference(**args)`` is the definition: naive torch, run in float64, differentiable. Returns a tuple of outputs.
    - ``bound(args, outputs, dtype)`` gives per output the largest absolute error that a right kernel computing in
      float32 inside can make; args and outputs are float64. One that depends on the dtypes of single arguments takes
      ``given`` too: the arguments as the call takes them.
    - ``gradient_bound(args, grad_outputs, gradients, dtype)`` does the same per differentiable argument, and takes
      ``given`` as ``bound`` does.
    - What a kernel rounds inside it names (``inner``, one of ``INNER``). Both bounds are asked for with that keyword,
      and derived for it. ``permits`` says of a kind that only some calls allow which: the argument and its value. A
      kernel of that kind declines every other call.
    - ``contiguous`` names arguments that are refused with any other strides.
    - ``cost(request)`` counts one call, by ``request.values`` where its work hangs on ``values``.
    - ``dims(request)`` names a call's dimensions (M, N, K, ...) for tuning tables and for tuning records, where calls
      whose dimensions have as many bits are alike. ``bucket(request)`` says what more must be the same for that (few
      rows one by one, say), by name; in place of the bits where it is a dimension's.
    - ``device_cases`` reach every configuration of the tuning table; their reference is computed on the device.
    - ``device_bench_cases`` are what ``bench`` times on a GPU, of the sizes that fill one; ``bench_cases`` without any.
    - ``errors`` are calls that must raise: (description, kwargs maker, exception type, text in the message).
    - ``arithmetic`` is ``"products"`` where nearly all that ``cost`` counts are products of matrices, which units for
      the arguments' dtype may do; else it is done in float32. ``elementary`` is the elementary function that ``cost``
      counts.
    - ``switches`` names optional numbers that make another computation of a call where they are given, however large:
      tuning records tell the two apart.
    - ``mutates`` names the arguments that a call writes to. Their new values are results too, and are named at the end
      of ``outputs``; what stands before them is returned. ``reference`` and ``bound`` give both; for one that was not
      given the reference None, the bound nothing. Of one that a call leaves alone the old value, and a bound of 0.
    - ``results`` says of an output, by its name, what is not as usual: its dtype and shape, when it is there, and the
      relation that it is judged by (``contract/results.py``).
    - ``limits`` says of an argument of integers what they may be: indices of another's dimension, or where groups of
      its elements end (``contract/limits.py``).
    - ``loose`` gives a reason where no right kernel comes near a bound: by dtype and output, or the gradient's name,
      ``{"float32 gradient of x": "..."}``. A verification refuses a bound that is that loose without one
      (verify/bounds.py).
    - ``pieces`` says which arguments some rows of a result are made from: ``{"output": ("x",)}`` if rows of the output
      are the output of the same rows of x, and of all of the other arguments. ``"gradient of x": ("x",
      "grad_output")`` says it of a gradient. A case may then compare drawn rows. What is not named has no pieces: a
      whole case compares it.
    - ``continuation`` says how a call goes on where an earlier one stopped; cases of several calls follow it.
    """

    name: str
    family: str
    formula: str
    source: str
    outputs: tuple[str, ...]
    differentiable: tuple[str, ...]
    check: Callable[..., None]
    reference: Callable[..., Outputs]
    bound: Callable[..., Outputs]
    cost: Callable[[Request], Cost]
    dims: Callable[[Request], dict[str, int]]
    cases: tuple[Case, ...]
    bench_cases: tuple[Case, ...]
    device_cases: tuple[Case, ...] = ()  # larger ones, which only a verification on an accelerator tries
    device_bench_cases: tuple[Case, ...] = ()
    gradient_bound: Callable[..., dict[str, Tensor]] | None = None
    bucket: Callable[[Request], dict[str, Any]] | None = None
    mutates: tuple[str, ...] = ()  # the arguments that a call writes to; the last of ``outputs``
    dtypes: tuple[torch.dtype, ...] = FLOATS
    errors: tuple[tuple[str, Callable[[], dict[str, Any]], type[Exception], str], ...] = ()
    arithmetic: Literal["float32", "products"] = "float32"
    elementary: str = "exp"
    switches: tuple[str, ...] = ()
    limits: Mapping[str, Limit] = field(default_factory=dict)
    values: Values | None = None
    loose: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    pieces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    permits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    contiguous: tuple[str, ...] = ()
    continuation: Continuation | None = None

    def __post_init__(self) -> None:
        if self.mutates and self.outputs[-len(self.mutates) :] != self.mutates:
            raise ValueError(f"the outputs of {self.name} must end with what it writes to: {', '.join(self.mutates)}")

    @property
    def returned_outputs(self) -> tuple[str, ...]:
        """The outputs that a call returns; the others are arguments that it writes to."""
        return self.outputs[: len(self.outputs) - len(self.mutates)]

    @property
    def results_in_order(self) -> tuple[Result, ...]:
        """What each output promises, in the order of ``outputs``. An argument keeps its dtype."""
        own = {name: Result(dtype=name) for name in self.mutates}
        return tuple(self.results.get(name) or own.get(name) or Result() for name in self.outputs)

    def cost_assumption(self, request: Request) -> str:
        """What the cost of a request takes to be so of values that nobody has counted; "" where it counts all."""
        return self.values.assumed if self.values is not None and not request.values else ""

    def unit(self, request: Request) -> torch.dtype:
        """The dtype whose units do the arithmetic of a call."""
        return request.dtype if self.arithmetic == "products" else torch.float32

    def permitted_kernel(self, kernel: Kernel) -> Kernel:
        """The kernel, which declines calls that do not allow what it rounds inside."""
        if kernel.inner not in self.permits:
            return kernel
        (argument, value), guard = self.permits[kernel.inner], kernel.guard

        def declines(request: Request) -> str | None:
            if request.args and request.args.get(argument) != value:
                return f"rounds {INNER[kernel.inner]}, which a call allows with {argument}={value!r}"
            return guard(request)

        return replace(kernel, guard=declines)


# ---------------------------------------------------------------- kernels

# What a kernel rounds inside, beside its results. Whatever is not float32 has its place in the bounds of each contract
# that has such kernels.
INT8_BY_BLOCK = "int8 by block"
INNER: Mapping[str, str] = {
    "float32": "nothing: sums and products are float32's",
    "input": "what is between two products to the inputs' dtype, as matrix units take it",
    INT8_BY_BLOCK: "the activations to 8 bits, with a scale for each block of 32",
}


@dataclass(frozen=True)
class Kernel:
    """One implementation for one target.

    ``guard(request)`` returns None, or the reason why this kernel declines. ``load(pass_)`` returns the callable for
    one pass, ``run(*args, out=None)``, building what must be built. ``source`` is the file that a certificate speaks
    for; kernels without one (``torch``, ``reference``) need no certificate: they are what the user has today.
    ``hashed(kernel)`` gives the hash of all that it runs: device code, and what ``load`` and ``prepare`` launch it
    with. ``differs()`` names an instruction of the kernel whose result is not the same on every maker's CPU; "" where
    it has none, and a verification speaks for every CPU of the architecture that confirms it. ``prepare(pass_, args)``
    may give a quicker callable for calls whose arguments look like these (dtypes, shapes, strides, device, scalars; not
    their alignment), with all that follows from them worked out; None where it has none.
    """

    name: str
    target: str
    load: Callable[[str], Callable[..., Any]]
    guard: Callable[[Request], str | None] = lambda request: None
    source: Path | None = None
    hashed: Callable[[Kernel], str] = lambda kernel: ""
    toolchain: Callable[[], str] = lambda: ""
    device: str = "cpu"  # the type of device that a certificate of this kernel speaks for
    differs: Callable[[], str] = lambda: ""
    inner: str = "float32"  # what it rounds inside: one of INNER
    prepare: Callable[[str, tuple[Any, ...]], Callable[..., Any] | None] | None = None
    passes: tuple[str, ...] = ("forward", "backward")
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.inner not in INNER:
            raise ValueError(f"inner of kernel {self.name} must be one of {', '.join(INNER)}, got {self.inner!r}")

    def hash(self) -> str:
        """What certificates, tuning records and records name this kernel as it is by; "" where it needs none."""
        return self.hashed(self)


# ---------------------------------------------------------------- checks that every op package shares


class Nothing:
    """What stands for an argument that was not given: None may be a value."""

    def __repr__(self) -> str:
        return "(the argument is missing)"


ABSENT: Any = Nothing()


def describe(value: Any) -> str:
    """A value as an error message shows it."""
    if isinstance(value, (Tensor, TensorSpec)):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]


def need_tensor(name: str, value: Any, *, optional: bool = False) -> None:
    """Raises TypeError unless ``value`` is a tensor (or None where ``optional``)."""
    if isinstance(value, (Tensor, TensorSpec)) or (optional and value is None):
        return
    if value is ABSENT:
        raise TypeError(f"{name} is missing")
    raise TypeError(f"{name} must be a torch.Tensor{' or None' if optional else ''}, got {describe(value)}")


def need_64_bits(name: str, value: Any) -> None:
    """Raises ValueError of an int that 64 bits do not hold: torch hands an operator its address in a float's place."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must fit into 64 bits where it is an int, got {value}")


def need_dtype(name: str, value: Any, dtypes: Sequence[torch.dtype] = FLOATS) -> None:
    """Raises TypeError unless the tensor has one of ``dtypes``."""
    if value.dtype not in dtypes:
        accepted = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise TypeError(f"{name} must have dtype {accepted}, got {describe(value)}")


def need_same(name: str, value: Any, other_name: str, other: Any) -> None:
    """Raises where two tensors differ in dtype (TypeError) or device (ValueError)."""
    if value.dtype != other.dtype:
        raise TypeError(f"{name} must have {other_name}'s dtype {describe(other)}, got {describe(value)}")
    if torch.device(value.device).type != torch.device(other.device).type:
        raise ValueError(f"{name} must be on {other_name}'s device {other.device}, got {value.device}")
