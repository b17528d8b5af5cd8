"""Which calls a kernel of ours may serve: the one place that decides it.

A kernel reads memory by address, shape and strides. That is right only where a tensor is what these say, and where
nothing else wants to see what is computed. So the quick ways ask two questions:

- of every tensor: is it exactly a ``torch.Tensor`` or ``Parameter``, and does its set of dispatch keys hold nothing
  but the keys of memory on a CPU or a CUDA device? (A negative bit, a zero tensor without memory, a wrapper of vmap,
  functionalization or forward-mode AD, sparse, nested, quantized and meta tensors are keys more.)
- of the world: is no transform of torch.func, no forward-mode AD, no ``torch.jit`` trace at work (they have to see
  operators of torch's own: the op's ``composite`` runs), and no mode and no profiler (they see ours, as a
  torch.library operator)?

The expressions are text, since the code that asks is written out for each op's arguments.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad, profiler
from torch.utils._device import DeviceContext

__all__ = [
    "MEMORY",
    "MEMORY_KEYS",
    "NAMES",
    "OBSERVER_CHECK",
    "OTHER",
    "PLAIN_TYPES",
    "RESOLVABLE",
    "TENSOR_KINDS",
    "TRACED",
    "TRANSFORM",
    "TRANSFORM_CHECK",
    "has_override_mode",
    "hide_from_modes",
    "is_observed",
    "is_plain",
    "is_transform_active",
    "key_of",
    "leaves",
    "resolve_bits",
    "skip_dynamo",
    "suspend_tracing",
    "tensor_kind",
    "version_of",
]  # fmt: skip

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

PLAIN_TYPES: frozenset[type] = frozenset((torch.Tensor, torch.nn.Parameter))

_keys = torch._C._dispatch_keys
_is_tracing = torch._C._is_tracing
_functorch = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack

# ---------------------------------------------------------------- what the code of a quick way asks, as text

TRANSFORM_CHECK = "functorch() or forward_ad._current_level >= 0 or is_tracing()"
OBSERVER_CHECK = f"dispatch_modes() or function_modes() or profiler._is_profiler_enabled or {TRANSFORM_CHECK}"

NAMES: dict[str, Any] = {
    "PLAIN": PLAIN_TYPES,
    "dispatch_modes": _dispatch_modes,
    "forward_ad": forward_ad,
    "function_modes": _function_modes,
    "functorch": _functorch,
    "is_tracing": _is_tracing,
    "profiler": profiler,
}


# ---------------------------------------------------------------- the world


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written; -1 where nobody counts: inference tensors, and what took the memory of one."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def is_transform_active() -> bool:
    """Whether a transform is at work that must see torch's own operators: torch.func, forward-mode AD, jit.trace."""
    return bool(_functorch() or forward_ad._current_level >= 0 or _is_tracing())


def is_observed() -> bool:
    """Whether somebody watches operators: a mode, or a profiler."""
    return bool(_dispatch_modes() or _function_modes() or profiler._is_profiler_enabled)


def has_override_mode() -> bool:
    """Whether a mode of the program's own is at work, which counts, changes or replaces torch's functions or operators:
    what stands in for them in a swapped model leaves it to them. Not so modes that a compiler traces with, the default
    device, and modes of ours (``sees_kernelworks``)."""
    functions = (torch._C._get_function_stack_at(i) for i in range(_function_modes()))
    operators = (torch._C._get_dispatch_stack_at(i) for i in range(_dispatch_modes()))
    return any(type(mode) is not DeviceContext and not _ours(mode) for mode in functions) or any(
        getattr(mode, "_mode_key", None) is None and not _ours(mode) for mode in operators
    )


def _ours(mode: Any) -> bool:
    return bool(getattr(mode, "sees_kernelworks", False))


@contextlib.contextmanager
def suspend_tracing() -> Iterator[None]:
    """Checks of shapes are no part of a traced program, and their numbers no warnings."""
    of_torch: Any = torch._C  # whose stubs lack one of the two
    state = of_torch._get_tracing_state()
    if state is None:
        yield
        return
    of_torch._set_tracing_state(None)
    try:
        yield
    finally:
        of_torch._set_tracing_state(state)


@contextlib.contextmanager
def hide_from_modes() -> Iterator[None]:
    """Nobody who watches operators is told of what is made of tensors without data."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


def skip_dynamo(function: FunctionT) -> FunctionT:
    """The function, which torch's compiler leaves to Python with all that it calls, where it is entered by itself: that
    compiler looks at each frame that is entered while a program that it compiled runs, those that torch's dispatcher
    enters too. Where it follows the program into the function, nothing changes. Loads no compiler."""
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


# ---------------------------------------------------------------- a tensor


def _mask(*names: str) -> int:
    mask = 0
    for name in names:
        mask |= torch._C.DispatchKeySet(torch._C._dispatch_key_parse(name)).raw_repr()
    return mask


# Keys of memory that is what it says; of a bit that says it must be computed with first; and of tensors that stand for
# others while a program is looked at.
MEMORY_KEYS = _mask("CPU", "CUDA", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA")
_BITS = _mask("Negative", "Conjugate")
_STANDS_IN = _mask("Meta", "AutogradMeta", "Functionalize") & ~MEMORY_KEYS

MEMORY, RESOLVABLE, TRACED, OTHER = "memory", "resolvable", "traced", "other"
TENSOR_KINDS = {
    MEMORY: "memory as address, shape and strides say: a kernel reads it",
    RESOLVABLE: "memory with a negative or conjugate bit: resolved by one copy, then a kernel reads that",
    TRACED: "no data, stands for a tensor (meta, fake, functional): torch's operator of the op runs",
    OTHER: "no plain memory (a subclass, sparse, nested, a zero tensor, another device): torch's own functions run",
}
TRANSFORM = "a transform (torch.func, forward-mode AD or torch.jit.trace) must see torch's own functions"
_TRACERS = (
    ("torch._subclasses.fake_tensor", "FakeTensor"), ("torch._subclasses.functional_tensor", "FunctionalTensor")
)  # fmt: skip


def tensor_kind(tensor: Tensor) -> str:
    """How a tensor is to be served: one of ``TENSOR_KINDS``."""
    if tensor.__class__ not in PLAIN_TYPES:
        for module, name in _TRACERS:
            known = getattr(sys.modules.get(module), name, None)
            if known is not None and isinstance(tensor, known):
                return TRACED
        return OTHER
    more = _keys(tensor).raw_repr() & ~MEMORY_KEYS
    if not more:
        return MEMORY
    if not more & ~_BITS:
        return RESOLVABLE
    return OTHER if more & ~_STANDS_IN else TRACED


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether a kernel may read these tensors' memory as their address, shape and strides say."""
    return all(t is None or tensor_kind(t) == MEMORY for t in tensors)


def resolve_bits(value: Any) -> Any:
    """``value`` with no negative and no conjugate bit on any tensor; differentiable."""
    if isinstance(value, Tensor):
        return value.resolve_conj().resolve_neg()
    return [resolve_bits(v) for v in value] if isinstance(value, (list, tuple)) else value


def leaves(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values, also in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from leaves(value)


# ---------------------------------------------------------------- the key of a plan


def _look(t: Tensor) -> tuple[Any, ...]:
    kind, more = t.__class__, _keys(t).raw_repr() & ~MEMORY_KEYS
    return kind not in PLAIN_TYPES and kind, more, t.dtype, t.get_device(), t.shape, t.is_contiguous() or t.stride()


def _part(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _look(value)
    if isinstance(value, (list, tuple)):
        return "list", tuple([_part(v) for v in value])
    return value.__class__, value


def key_of(
    what: str, wanted: int, args: tuple[Any, ...], out: Any, kernel: str | None, threads: int
) -> tuple[Any, ...] | None:
    """What calls that may share a plan agree in: everything but the tensors' data. None where it cannot be said.

    ``dispatch/native/key.hpp`` says the same in bytes: the first letter of what it is a key of, each argument, the
    kernel asked for, ``out``, threads where a tensor is the CPU's, and a bit for each argument whose gradient is asked
    for. Of a tensor: dtype, device, sizes, and strides where it is not contiguous; of one that is not plain memory its
    class and dispatch keys too. Of another value: its class and itself. Of a list: its length and items.
    """
    try:
        key = (what[0], threads, tuple([_part(a) for a in args]), kernel, _part(out), wanted)
        hash(key)
    except Exception:  # a nested tensor has no shape, a list is no number
        return None
    return key
