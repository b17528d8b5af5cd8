"""What a forward computes, verified and not guessed: norms and activations that somebody wrote out in arithmetic.

A verification has two halves, and both are needed.

- **Structure.** The forward and the methods that it calls are plain functions without a branch, a loop, a closure or a
  name that is not known to be harmless; run on symbols, they record nothing but smooth operations without side effects
  (no ``clamp``, ``detach``, ``nan_to_num``, comparison, index or write), and read of the module nothing but its weight,
  numbers and those methods.
- **Values.** The forward, run on tensors, agrees with the formula for one to four dimensions, in float64, with its
  gradients by input and weight, and in each dtype, for large, tiny, infinite and undefined values. Smooth formulas that
  agree at random points are the same formula; a dtype in which they part is left to the module's own forward.

What was read may change later. So the forward that takes the place of an identified one first asks for each thing that
was read whether it is what it was, and calls the module's own forward if it is not.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from kernelworks.dispatch.generated_code import run_generated_code
from kernelworks.dispatch.op import Op
from kernelworks.nn import functional as calls
from kernelworks.nn.originals import TORCH_FUNCTIONS, forward_of
from kernelworks.ops.activation.gelu import OP as GELU
from kernelworks.ops.norm.rms_norm import OP as RMS_NORM

__all__ = [
    "FAILURES",
    "ForwardReads",
    "IdentifiedForward",
    "NotIdentified",
    "check",
    "default_torch_modes",
    "identify_forward",
    "reason_not_identified",
]

# Names that such a forward may use: of torch, of tensors and of `math`. Nothing here writes, branches, cuts gradients
# or depends on anything but its arguments.
_HARMLESS = frozenset(
    {
        "add", "bfloat16", "div", "dtype", "erf", "exp", "float", "float16", "float32", "float64", "functional", "gelu",
        "math", "mean", "mul", "nn", "pi", "pow", "reciprocal", "rsqrt", "sigmoid", "silu", "sqrt", "square", "tanh",
        "to", "torch", "type", "type_as",
    }
)  # fmt: skip
# What may be recorded: these, on symbols.
_RECORDED = _HARMLESS - {"torch", "nn", "functional", "math", "pi"} | {"getattr", "neg", "sub", "truediv"}
_KEYWORDS = frozenset({"approximate", "dim", "dtype", "exponent", "inplace", "keepdim", "other"})
_MODULES = (torch, nn, F, math)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class NotIdentified(Exception):
    """The forward is not identified. The message says why, for whoever debugs it."""


# ---------------------------------------------------------------- structure


@dataclass
class ForwardReads:
    """What a forward has read: attributes of its module, functions of its class, globals (numbers and functions)."""

    attributes: dict[str, Any] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    globals: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)  # whose, the name, and what it was
    calls: set[str] = field(default_factory=set)  # of torch.nn.functional
    constants: tuple[float, ...] = ()  # that enter its operations

    def key(self) -> tuple[Any, ...]:
        parts = (self.attributes.items(), self.functions.items(), [(n, v) for _, n, v in self.globals])
        return (*(tuple((n, type(v), v) for n, v in part) for part in parts), frozenset(self.calls))


class _Self:
    """Stands for a module while its forward is looked at: gives what may be read, and refuses the rest."""

    def __init__(self, module: nn.Module, weight: Any, seen: ForwardReads) -> None:
        object.__setattr__(self, "_of", (module, weight, seen))

    def __setattr__(self, name: str, value: Any) -> None:
        raise NotIdentified(f"it sets {name}")

    def __getattr__(self, name: str) -> Any:
        module, weight, seen = object.__getattribute__(self, "_of")
        if name == "weight" and "weight" in module._parameters and "weight" not in module.__dict__:
            return weight
        if name in module.__dict__:
            value = module.__dict__[name]
            if type(value) not in (int, float) and not _is_gelu(value):
                raise NotIdentified(f"it reads {name}, which is no number")
            seen.attributes[name] = value
            return value
        found = inspect.getattr_static(type(module), name, None)
        if type(found) in (int, float):
            seen.attributes[name] = found
            return found
        function = found.__func__ if isinstance(found, staticmethod) else found
        check(module, function, seen)
        seen.functions[name] = function
        return function if isinstance(found, staticmethod) else types.MethodType(function, self)


def _is_gelu(value: Any) -> bool:
    """torch's GELU as it is, or bound to one of its two formulas: how transformers keeps it on an instance."""
    if type(value) is functools.partial:
        return value.func is TORCH_FUNCTIONS["gelu"] and not value.args and value.keywords.keys() <= {"approximate"}
    return value is TORCH_FUNCTIONS["gelu"]


def check(module: nn.Module | None, function: Any, seen: ForwardReads, more: frozenset[str] = frozenset()) -> None:
    """Raises unless running a function does nothing but what its operations on symbols record. ``more`` are further
    names that it may use."""
    if not isinstance(function, types.FunctionType) or (function.__module__ or "").partition(".")[0] == "torch":
        raise NotIdentified("it calls something that is no function of a user's class")
    code = function.__code__
    if (
        code.co_exceptiontable
        or code.co_freevars
        or code.co_cellvars
        or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)
    ):
        raise NotIdentified("it is a closure, a generator or a coroutine, or handles exceptions")
    space = function.__globals__
    allowed = _HARMLESS | more | (set() if module is None else module.__dict__.keys() | {"weight"})
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opcode in (*dis.hasjrel, *dis.hasjabs) or instruction.opname in ("MAKE_FUNCTION", "IMPORT_NAME"):
            raise NotIdentified("it branches, loops, makes functions or imports")
        if instruction.opname.startswith(("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "DELETE_")):
            raise NotIdentified("it writes")
        if instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="):
            raise NotIdentified("it computes in place")
        if instruction.opname == "LOAD_GLOBAL":
            value = space.get(name)
            if type(value) in (int, float):
                seen.globals.append((space, name, value))
            elif isinstance(value, types.FunctionType) and value is not function:
                check(None, value, seen, more)
                seen.globals.append((space, name, value))
            elif not any(value is m for m in _MODULES):
                raise NotIdentified(f"it uses {name}")
        elif (
            instruction.opcode in dis.hasname
            and name not in allowed
            and (module is None or not hasattr(type(module), name))
        ):
            raise NotIdentified(f"it uses {name}")
    seen.calls |= set(code.co_names) & TORCH_FUNCTIONS.keys() & vars(F).keys()
    if any(getattr(F, name) is not TORCH_FUNCTIONS[name] for name in seen.calls):
        raise NotIdentified("torch's function is not what stands there")


def _structure(module: nn.Module, forward: Any) -> ForwardReads:
    """Runs a forward on symbols. Raises if it is more than smooth operations on its argument and the weight."""
    seen = ForwardReads()
    check(module, forward, seen)
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    x, weight = (fx.Proxy(graph.placeholder(name), tracer) for name in ("x", "weight"))
    result = forward(_Self(module, weight, seen), x)
    if not isinstance(result, fx.Proxy):
        raise NotIdentified("it returns something else")
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        target = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        known = isinstance(target, (str, types.BuiltinFunctionType)) or target in TORCH_FUNCTIONS.values()
        if name not in _RECORDED or not known:
            raise NotIdentified(f"it calls {name}")
        if name == "getattr" and node.args[1] != "dtype":
            raise NotIdentified(f"it asks for {node.args[1]}")
        if node.kwargs.keys() - _KEYWORDS or node.kwargs.get("inplace"):
            raise NotIdentified(f"it calls {name} with {', '.join(node.kwargs)}")
        if name in ("to", "type") and not all(isinstance(a, (torch.dtype, fx.Node)) for a in node.args[1:]):
            raise NotIdentified("it may move to another device")
        seen.constants += tuple(a for a in (*node.args, *node.kwargs.values()) if isinstance(a, float))
    return seen


# ---------------------------------------------------------------- values


@dataclass(frozen=True)
class _Formula:
    """What a forward may be: its op, whether it has a weight, the number that it takes (an eps), and the arithmetic."""

    kind: str
    ops: tuple[str, ...]
    weighted: bool
    numbers: Callable[[ForwardReads], tuple[Any, ...]]
    want: Callable[[Tensor, Tensor, Any], Tensor]
    op: Op | None  # in the forward that takes its place, and its arguments of `x`, `weight` and NUMBER
    arguments: str


def _small(seen: ForwardReads) -> tuple[float, ...]:
    return tuple(dict.fromkeys(n for n in seen.constants if 0.0 < n < 0.1))


def _normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float() if x.dtype is not torch.float64 else x
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


FORMULAS = (
    _Formula("rms norm", ("rms_norm",), True, _small, _normalised, RMS_NORM, "x, weight, NUMBER, None"),
    _Formula(
        "gelu", ("gelu",), False, lambda seen: ("none", "tanh"),
        lambda x, weight, approximate: TORCH_FUNCTIONS["gelu"](x, approximate=approximate),
        GELU, "x, NUMBER",
    ),
    _Formula(
        "silu", (), False, lambda seen: (None,), lambda x, weight, nothing: x * torch.sigmoid(x), None, "",
    ),
)  # fmt: skip

SIZE = 6
_SHAPES = ((SIZE,), (4, SIZE), (2, 3, SIZE), (2, 3, 4, SIZE))  # no other dimension is as long as the last


def _points(shape: tuple[int, ...], dtype: torch.dtype, scales: tuple[float, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    x = torch.randn((len(scales), *shape), generator=generator, dtype=torch.float64)
    return (x * torch.tensor(scales, dtype=torch.float64).view(-1, *(1 for _ in shape))).to(dtype)


def _close(got: Any, want: Tensor, size: Tensor, tolerance: float) -> bool:
    """Whether got is want within a share of ``size``, undefined where it is, and infinite where it is."""
    if not isinstance(got, Tensor) or got.dtype is not want.dtype or got.shape != want.shape:
        return False
    a, b = got.detach().double(), want.detach().double()
    near = (a - b).abs() <= tolerance * size.detach().double().abs() + torch.finfo(want.dtype).tiny
    return bool((near | (a == b) | (a.isnan() & b.isnan())).all())


def _gradients(
    run: Callable[[Tensor, Tensor], Any], formula: _Formula, number: Any, x: Tensor, weight: Tensor, flow: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """By the input, and by the weight where there is one: the forward's and the formula's."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    inputs = (x, weight) if formula.weighted else (x,)
    outputs = run(x, weight), formula.want(x, weight, number)
    found = [torch.autograd.grad(o, inputs, flow.to(o.dtype), materialize_grads=True) for o in outputs]
    return list(zip(*found, strict=True))


def _agrees(run: Callable[[Tensor, Tensor], Any], formula: _Formula, number: Any) -> bool:
    """In float64: every number of dimensions, magnitudes around the number, and gradients."""
    generator = torch.Generator().manual_seed(0)
    root = math.sqrt(number) if formula.weighted else 1.0
    scales = (root / 100, root, 30 * root, 1.0, 0.3, 10.0)
    for shape in _SHAPES:
        for x in _points(shape, torch.float64, scales):
            weight = torch.randn(SIZE, generator=generator, dtype=torch.float64)
            flow = torch.randn(shape, generator=generator, dtype=torch.float64)
            want, got = formula.want(x, weight, number), run(x, weight)
            # a forward that computes in float32 inside, whatever it is given, is as exact as that
            if not _close(got, want, want if formula.weighted else x, 2e-6 if formula.weighted else 1e-9):
                return False
            for have, true in _gradients(run, formula, number, x, weight, flow):
                if not _close(have, true, true.abs().max(), 1e-4):
                    return False
    return True


def _serves(run: Callable[[Tensor, Tensor], Any], formula: _Formula, number: Any, dtype: torch.dtype) -> bool:
    """In one of the dtypes of the kernels: the same dtype out, and the same where numbers are out of the ordinary."""
    limits = torch.finfo(dtype)
    rounding = 8 * limits.eps
    scales = (1.0, 30.0, limits.max**0.25, limits.max**0.75, 1e-2, limits.tiny**0.5, 0.0)
    for shape in _SHAPES:
        weight = torch.linspace(0.5, 1.5, SIZE, dtype=torch.float64).to(dtype)
        for x in _points(shape, dtype, scales):
            want = formula.want(x, weight, number)
            if not _close(run(x, weight), want, want if formula.weighted else x, rounding):
                return False
        for x in _points(shape, dtype, (1.0, 30.0, 1000.0)):  # a cube overflows in float16, and its gradient is NaN
            for have, true in _gradients(run, formula, number, x, weight, torch.ones_like(x)):
                if not bool((have.isfinite() == true.isfinite()).all()):
                    return False
        for odd in (math.inf, -math.inf, math.nan):
            x = _points(shape, dtype, (1.0,))[0]
            x.view(-1)[1] = odd
            want, got = formula.want(x, weight, number), run(x, weight)
            if not bool((want.isfinite() == got.isfinite()).all()):
                return False
    return True


# ---------------------------------------------------------------- verification


@dataclass(frozen=True)
class IdentifiedForward:
    """What a forward was verified to be. ``forward`` takes its place; ``numbers`` are the attributes that it read, with
    their values, and ``number`` is the formula's (an eps, or which of two GELUs)."""

    kind: str
    ops: tuple[str, ...]
    number: Any
    numbers: tuple[tuple[str, Any], ...]
    dtypes: frozenset[torch.dtype]
    forward: Callable[..., Any]
    holds: Callable[[Any], bool]  # whether all that was read of a module is what it was


_IDENTIFIED: dict[Any, IdentifiedForward | None] = {}


def identify_forward(module: nn.Module) -> IdentifiedForward | None:
    """Which of ``FORMULAS`` the forward of ``module`` is, verified, or None. It runs no code of the user's that could
    do anything but arithmetic."""
    try:
        return _identify(module)
    except (NotIdentified, *FAILURES):
        return None


def reason_not_identified(module: nn.Module) -> str:
    """Why a module that looks like a norm was not verified to be one; "" for any other."""
    code = getattr(forward_of(module), "__code__", None)
    classes = type(module).__mro__[: type(module).__mro__.index(nn.Module)]
    inner = [f.__code__ for cls in classes for f in vars(cls).values() if isinstance(f, types.FunctionType)]
    names = {n for c in (code, *inner) if c is not None for n in c.co_names}
    if "weight" not in module._parameters or "mean" not in names or not names & {"rsqrt", "sqrt", "pow"}:
        return ""
    why = "its values or gradients differ from those of one"
    try:
        _identify(module)
    except NotIdentified as error:
        why = str(error)
    except FAILURES:
        why = "its arithmetic cannot be followed"
    return f"it looks like a root mean square norm, but was not verified to be one: {why}"


def _identify(module: nn.Module) -> IdentifiedForward | None:
    forward, parameters = forward_of(module), module._parameters
    code = getattr(forward, "__code__", None)
    if code is None or code.co_argcount != 2 or code.co_kwonlyargcount or code.co_posonlyargcount:
        raise NotIdentified("it takes other arguments than one tensor")
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or forward.__defaults__:
        raise NotIdentified("it takes other arguments than one tensor")
    if module._buffers or module._modules or parameters.keys() - {"weight"}:
        raise NotIdentified("it has parameters, buffers or modules beside a weight")
    if type(module).__call__ is not nn.Module.__call__:
        raise NotIdentified("its class has a __call__ of its own")
    weight = parameters.get("weight")
    if "weight" in parameters and (weight is None or weight.dim() != 1):
        raise NotIdentified("its weight is no vector")
    seen = _structure(module, forward)
    key = (forward, weight is None, seen.key())
    if key not in _IDENTIFIED:
        _IDENTIFIED[key] = _match_formula(module, forward, seen, weight is not None)
    return _IDENTIFIED[key]


FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, fx.proxy.TraceError)


@contextlib.contextmanager
def default_torch_modes() -> Iterator[None]:
    """Torch's default modes, so that what the caller has set up neither sees nor changes the check of values."""
    with (
        torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"),
    ):  # fmt: skip
        yield


def _match_formula(module: nn.Module, forward: Any, seen: ForwardReads, weighted: bool) -> IdentifiedForward | None:
    def run(x: Tensor, weight: Tensor) -> Any:
        return forward(_Self(module, weight, ForwardReads()), x)

    with default_torch_modes():
        for formula in FORMULAS:
            for number in formula.numbers(seen) if formula.weighted == weighted else ():
                with contextlib.suppress(*FAILURES):
                    if not _agrees(run, formula, number):
                        continue
                    dtypes = frozenset(d for d in DTYPES if _serves(run, formula, number, d))
                    if torch.float32 in dtypes:
                        made, holds = _in_its_place(forward, formula, number, seen, dtypes)
                        attributes = tuple(seen.attributes.items())
                        return IdentifiedForward(formula.kind, formula.ops, number, attributes, dtypes, made, holds)
    return None


_FORWARD = """
def holds(self):
    return {holds}

def forward(self, x):
    if {holds}:
        {weight}
        if {takes} and x.dtype in DTYPES:
            try:
                if not torchs(OP, {arguments}):
                    return OP.call({arguments})
            except REFUSED:
                pass
    return type(self).forward(self, x)
"""


_WEIGHT = """weight = self._parameters.get("weight")
        if weight is None:  # computed from others: a parametrization
            weight = self.weight"""


def _in_its_place(
    forward: Any, formula: _Formula, number: Any, seen: ForwardReads, dtypes: frozenset[torch.dtype]
) -> tuple[Any, Callable[[Any], bool]]:
    """The forward that calls the op as long as all that the verification read is what it was; and that question."""
    scope: dict[str, Any] = {
        "DTYPES": dtypes, "F": F, "FORWARD": forward, "NUMBER": number,
        "OP": formula.op, "REFUSED": calls.CONTRACT_ERRORS, "expressible": calls.expressible, "fusible": calls.fusible,
        "takes_rows": calls.takes_rows, "torchs": calls.prefers_torch,
    }  # fmt: skip
    holds = ["type(self).forward is FORWARD"]

    def ask(expression: str, value: Any) -> None:
        scope[f"KEPT{len(holds)}"] = value
        number = isinstance(value, (int, float))  # a tensor that equals it has a gradient
        same = f"{expression}.__class__ is {type(value).__name__} and {expression} ==" if number else f"{expression} is"
        holds.append(f"{same} KEPT{len(holds)}")

    for name, value in seen.attributes.items():
        ask(f"self.{name}", value)
    for name, value in seen.functions.items():
        ask(f"type(self).{name}", value)
        holds.append(f"{name!r} not in self.__dict__")
    for space, name, value in seen.globals:
        scope[f"GLOBALS{len(holds)}"] = space
        ask(f"GLOBALS{len(holds)}.get({name!r})", value)
    for name in sorted(seen.calls):
        ask(f"F.{name}", TORCH_FUNCTIONS[name])
    source = _FORWARD.format(
        holds=" and ".join(holds),
        weight=_WEIGHT if formula.weighted else "weight = None",
        takes="expressible(x, weight) and not fusible(x)" + (" and takes_rows(x, weight)" if formula.weighted else ""),
        arguments=formula.arguments,
    )
    run_generated_code(source, scope, f"generated {forward.__qualname__}")
    if formula.op is not None:
        made: types.FunctionType = scope["forward"]
        argument = forward.__code__.co_varnames[1]  # it may be given by its own name
        names = tuple(argument if n == "x" else f"_{n}" if n == argument else n for n in made.__code__.co_varnames)
        code = made.__code__.replace(co_varnames=names, co_qualname=forward.__qualname__)
        forward = functools.update_wrapper(types.FunctionType(code, scope, "forward"), forward)
    return forward, scope["holds"]
