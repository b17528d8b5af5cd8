"""A kernel's call, worked out once: for calls that look alike, allocate and launch, with nothing in between.

A kernel's ``forward`` in Python derives strides, grid and configuration from its arguments, 2 to 4 us of host time. All
of that follows from dtypes, shapes, strides and scalars, which are the same for all calls of one plan. So the call is
run once and recorded; where all it did was to allocate and to launch, code is made that does only that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.launcher import recording
from kernelworks.build.series import Allocations, owns_storage
from kernelworks.build.triton import Launch

__all__ = ["make_replay"]


def make_replay(function: Callable[..., Any], args: tuple[Any, ...], *, most: int = 1) -> Callable[..., Any] | None:
    """``function`` for arguments that differ from ``args`` in data and alignment only; None where it does anything but
    up to ``most`` launches on its inputs, its outputs and what it allocates between them. Runs the function once.
    """
    seen = Allocations()
    with recording() as launches, torch.no_grad(), seen:
        result = function(*args)
    if seen.others or not all(isinstance(launch, Launch) for launch, *_ in launches):
        return None
    results = result if isinstance(result, tuple) else (result,)
    if not 1 <= len(launches) <= most or not all(isinstance(r, Tensor) and owns_storage(r) for r in results):
        return None
    places: dict[int, str] = {}
    for letter, tensors in (("a", args), ("o", results)):
        for i, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor) or tensor.numel() == 0:
                continue
            if tensor.data_ptr() in places:  # two inputs in one place, or an output that is an input
                return None
            places[tensor.data_ptr()] = f"{letter}{i}"
    between: dict[str, Tensor] = {}
    for made in seen.made if most > 1 else ():
        if made.numel() and made.is_contiguous() and made.data_ptr() not in places:
            name = places[made.data_ptr()] = f"t{len(between)}"
            between[name] = made
    steps = []
    for launch, grid, arguments in launches:
        given = [places.get(a.data_ptr()) for a in arguments if isinstance(a, Tensor)]
        if None in given or launch.scratches:
            return None
        steps.append((launch.prepare_launch(grid, *arguments), [g for g in given if g]))
    named = {name for _, given in steps for name in given}
    if not {f"o{i}" for i, r in enumerate(results) if r.numel()} <= named:
        return None
    return _compiled(function, steps, args, result, {n: made for n, made in between.items() if n in named})


def _compiled(
    function: Callable[..., Any], steps: list[tuple[Callable[..., None], list[str]]], args: tuple[Any, ...],
    result: Any, between: dict[str, Tensor],
) -> Callable[..., Any]:  # fmt: skip
    """The code: allocate, launch, return."""
    results = result if isinstance(result, tuple) else (result,)
    scope: dict[str, Any] = {
        "function": function, "empty": torch.empty, "empty_like": torch.empty_like,
        "empty_strided": torch.empty_strided,
    }  # fmt: skip
    names = [f"o{i}" for i in range(len(results))]
    single = not isinstance(result, tuple)
    lines = [f"def run({', '.join(f'a{i}' for i in range(len(args)))}, out=None):", "    if out is None:"]
    for name, made in zip(names, results, strict=True):
        lines.append(f"        {name} = {_allocation(name, made, args, scope)}")
    lines.append("    else:")
    if all(made.is_contiguous() for made in results):
        lines.append(f"        {'o0' if single else ', '.join(names) + ','} = out")
    else:  # a caller's own `out` is contiguous, which a launch for another layout does not fit
        lines.append(f"        return function({', '.join(f'a{i}' for i in range(len(args)))}, out=out)")
    lines += [f"    {name} = {_allocation(name, made, args, scope)}" for name, made in between.items()]
    for i, (again, given) in enumerate(steps):
        scope[f"again{i}"] = again
        lines.append(f"    again{i}({', '.join(given)})")
    lines.append(f"    return {'o0' if single else f'({chr(44).join(names)},)'}")
    exec("\n".join(lines), scope)
    run: Callable[..., Any] = scope["run"]
    return run


def _allocation(name: str, made: Tensor, args: tuple[Any, ...], scope: dict[str, Any]) -> str:
    """Like an input where one has the shape: torch allocates that three times as quickly."""
    for i, a in enumerate(args):
        alike = isinstance(a, Tensor) and (a.shape, a.dtype, a.device) == (made.shape, made.dtype, made.device)
        if alike and a.is_contiguous() and made.is_contiguous():
            return f"empty_like(a{i})"
    scope[f"shape_{name}"], scope[f"dtype_{name}"], scope["device"] = made.shape, made.dtype, made.device
    if made.is_contiguous():
        return f"empty(shape_{name}, dtype=dtype_{name}, device=device)"
    scope[f"stride_{name}"] = made.stride()
    return f"empty_strided(shape_{name}, stride_{name}, dtype=dtype_{name}, device=device)"
