"""A fused function as an operator of torch's: what compiled programs call, without a break in their graph.

Its arguments are lists of tensors, of integers and of floats, a text that says how the function is called (``tgif,n``:
a tensor, one that requires a gradient, an integer, and a float that is named n), and the function's number in this
process. The kernels of eager calls serve it, forward and backward.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernelworks.contract.tensors import skip_dynamo
from kernelworks.fuse.own_thread import run_in_own_thread

if TYPE_CHECKING:
    from kernelworks.fuse.fused_function import FusedFunction

__all__ = ["call_operator", "register_function"]

_LIBRARY = torch.library.Library("kernelworks", "FRAGMENT")
_LIBRARY.define("fused(Tensor[] tensors, SymInt[] ints, Scalar[] floats, str call, int function) -> Tensor[]")
_LIBRARY.define(
    "fused_backward(Tensor[] tensors, Tensor?[] grads, bool[] needs, SymInt[] ints, Scalar[] floats, str call, "
    "int function) -> Tensor[]"
)
SINGLE, RECORDED, DETACHED = "=", "r", "d"  # what a function returns, in a text: one tensor, and each with a gradient

_functions: weakref.WeakValueDictionary[int, FusedFunction] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_returns: dict[tuple[int, str], str] = {}


def register_function(function: FusedFunction) -> int:
    """The number by which operators find it."""
    number = next(_numbers)
    _functions[number] = function
    return number


# ---------------------------------------------------------------- in a program that is being compiled


def call_operator(fused: FusedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call of a function in a program that Dynamo reads: by the operator, or the function itself if an argument is
    neither a tensor nor a number, or if it returns something else than tensors."""
    tensors, ints, floats, kinds = [], [], [], ""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            tensors.append(value)
            kinds += "g" if value.requires_grad and torch.is_grad_enabled() else "t"
        elif isinstance(value, bool):
            return fused.function(*args, **kwargs)
        elif isinstance(value, int):
            ints.append(value)
            kinds += "i"
        elif isinstance(value, float):
            floats.append(value)
            kinds += "f"
        else:
            return fused.function(*args, **kwargs)
    if not tensors:
        return fused.function(*args, **kwargs)
    call = kinds + "," + ",".join(kwargs)
    made = torch.ops.kernelworks.fused(tensors, ints, floats, call, fused.number)
    returns = _returned(fused.number, call)
    if not returns:
        return fused.function(*args, **kwargs)
    found = tuple(t if kind == RECORDED else t.detach() for t, kind in zip(made, returns.strip("=[]"), strict=True))
    if returns[0] == SINGLE:
        return found[0]
    return list(found) if returns[0] == "[" else found


def _returned(number: int, call: str) -> str:
    """What a function returned when it was last called without data."""
    return _returns[number, call]


_returned._dynamo_marked_constant = True  # type: ignore[attr-defined]  # assume_constant_result, without its import


def _described(found: Any) -> str:
    several = found if isinstance(found, (tuple, list)) else (found,)
    if type(found) not in (tuple, list) and not isinstance(found, Tensor):
        return ""
    if not several or not all(isinstance(t, Tensor) for t in several):
        return ""
    kinds = "".join(RECORDED if t.requires_grad else DETACHED for t in several)
    return SINGLE + kinds if isinstance(found, Tensor) else f"[{kinds}]" if isinstance(found, list) else kinds


# ---------------------------------------------------------------- the operators


def _arguments(
    tensors: Sequence[Any], ints: Sequence[Any], floats: Sequence[Any], call: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the function."""
    kinds, *names = call.split(",")
    given = iter(tensors)
    lists = {"t": given, "g": given, "i": iter(ints), "f": iter(floats)}
    values = [next(lists[kind]) for kind in kinds]
    names = [name for name in names if name]
    count = len(values) - len(names)
    return tuple(values[:count]), dict(zip(names, values[count:], strict=True))


def _function_of(number: int) -> FusedFunction:
    found = _functions.get(number)
    if found is None:
        raise RuntimeError("the fused function that this program calls is gone: a graph of it serves one process")
    return found


def _owned(results: Sequence[Tensor], inputs: Sequence[Any]) -> list[Tensor]:
    """Contiguous results that share no memory with what was given, or with each other."""
    storages = {t.untyped_storage()._cdata for t in inputs if isinstance(t, Tensor)}
    made = []
    for t in results:
        t = t.detach().contiguous()
        if t.untyped_storage()._cdata in storages:
            t = t.clone(memory_format=torch.contiguous_format)
        storages.add(t.untyped_storage()._cdata)
        made.append(t)
    return made


def _fused(tensors: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float], call: str, number: int) -> Any:
    args, kwargs = _arguments([t.detach() for t in tensors], ints, floats, call)
    with torch.no_grad():
        found = _function_of(number).run(*args, **kwargs)
    return _owned(found if isinstance(found, (tuple, list)) else (found,), tensors)


def _fake(tensors: Sequence[Tensor], ints: Sequence[Any], floats: Sequence[Any], call: str, number: int) -> Any:
    wanted = [kind == "g" for kind in call.split(",")[0] if kind in "tg"]
    given = [t.detach().requires_grad_(want) for t, want in zip(tensors, wanted, strict=True)]
    args, kwargs = _arguments(given, ints, floats, call)
    with torch.enable_grad():  # in a thread that records gradients: this one is below the recording
        found = run_in_own_thread(lambda: _function_of(number).function(*args, **kwargs))
    _returns[number, call] = _described(found)
    several = found if isinstance(found, (tuple, list)) else (found,)
    return [t.new_empty(t.shape) for t in several if isinstance(t, Tensor)]


def _fused_backward(
    tensors: Sequence[Tensor], grads: Sequence[Tensor | None], needs: Sequence[bool], ints: Sequence[int],
    floats: Sequence[float], call: str, number: int,
) -> Any:  # fmt: skip
    given = [t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
    args, kwargs = _arguments(given, ints, floats, call)
    found = _function_of(number).gradients(args, kwargs, grads)
    wanted = [t for t, need in zip(given, needs, strict=True) if need]
    by_tensor = {id(t): g for t, g in found}
    made = [by_tensor.get(id(t)) for t in wanted]
    whole = [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, made, strict=True)]
    return _owned(whole, [*tensors, *grads])


def _fake_backward(
    tensors: Sequence[Tensor], grads: Sequence[Tensor | None], needs: Sequence[bool], *rest: Any
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, need in zip(tensors, needs, strict=True) if need]


def _composed(
    tensors: Sequence[Tensor], ints: Sequence[Any], floats: Sequence[Any], call: str, number: int
) -> list[Tensor]:
    """Under torch.func's transforms: the function itself."""
    args, kwargs = _arguments(tensors, ints, floats, call)
    found = _function_of(number).function(*args, **kwargs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, *ctx.rest = inputs
    ctx.needs = [t.requires_grad for t in tensors]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    made = iter(torch.ops.kernelworks.fused_backward(list(ctx.saved_tensors), list(grads), ctx.needs, *ctx.rest))
    numbers: list[Any] = [
        None if given else [] for given in ctx.rest[:2]
    ]  # torch takes an empty list for one of tensors
    return [next(made) if need else None for need in ctx.needs], *numbers, None, None


_LIBRARY.impl("fused", skip_dynamo(_fused), "CompositeExplicitAutograd")
_LIBRARY.impl("fused", skip_dynamo(_composed), "FuncTorchBatchedDecomposition")
_LIBRARY.impl("fused_backward", skip_dynamo(_fused_backward), "CompositeExplicitAutograd")
torch.library.register_fake("kernelworks::fused", _fake, lib=_LIBRARY)
torch.library.register_fake("kernelworks::fused_backward", _fake_backward, lib=_LIBRARY)
torch.library.register_autograd("kernelworks::fused", _backward, setup_context=_setup_context, lib=_LIBRARY)
