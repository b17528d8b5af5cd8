"""The way into an op: a function written out for its arguments, so that a small call costs about a microsecond."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler

from kernelworks.autograd import PLAIN, TENSOR_KEY, differentiated
from kernelworks.contract import spec

__all__ = ["entry"]

# One entry per op, written out for its arguments: a loop over them would cost as much again as all the rest.
_ENTRY = """
def call({arguments}, out=None, row=None):
    if is_compiling():
        return through_torch(({arguments},), out, row)
    watched = dispatch_modes() or function_modes() or profiler._is_profiler_enabled or functorch_level()
    if (
        quick is not None and row is None and {plain} and not (grad_enabled() and ({gradients}))
        and not watched and (out is None or out.__class__ is Tensor)
    ):
        table, kept = quick
        try:
            found = find(table, get_threads(), {arguments}, out)
        except Exception:  # what cannot be described to C (a sparse tensor, say) takes the way below
            found = -1
        if found >= 0:
            return kept[found]({arguments}, out=out)
    recorded = False
    try:
        key = plan = None
        if not (grad_enabled() and ({gradients})):
            key = ({key}, row, get_threads())
            if not watched:
                plan = plans.get(key)
        elif {recordable} and out is None and not watched:
            recorded = {plain}{settled}
    except (AttributeError, TypeError):  # an argument of a wrong type: the contract's check says which
        key = plan = None
    if recorded:
        return differentiated()({arguments}, row)
    if plan is None:
        return miss(({arguments},), out, row, key)
    return plan({arguments}, out=out)
"""


def entry(op: Any) -> tuple[Callable[..., Any], dict[str, Any] | None]:
    """The function behind ``op(...)``, made from the forward's schema, and its scope: there ``find`` and ``quick`` can
    be set once plans are found in C. None for an op that takes lists, which are not.
    """
    arguments = torch._C.parse_schema(op.passes["forward"].schema).arguments
    names = op.passes["forward"].names
    keys, gradients, plain, settled = [], [], [], []
    for argument in (a for a in arguments if a.name in names):
        name, kind = argument.name, str(argument.type)
        tensor = TENSOR_KEY.format(name)
        if kind == "Tensor":
            keys.append(tensor)
            plain.append(f"{name}.__class__ in PLAIN")
            if name not in op.contract.differentiable:  # asking for its gradient is an error, which a check raises
                settled.append(f" and not {name}.requires_grad")
            gradients.append(f"{name}.requires_grad")
        elif kind == "Optional[Tensor]":
            keys.append(f"None if {name} is None else ({tensor})")
            plain.append(f"({name} is None or {name}.__class__ in PLAIN)")
            gradients.append(f"({name} is not None and {name}.requires_grad)")
        elif kind.startswith("List"):
            keys.append(f"tuple([({TENSOR_KEY.format('v')}) for v in {name}])")
            gradients.append(f"any(v.requires_grad for v in {name})")
        else:
            keys.append(op.passes["forward"].free.get(name, name))
    outs = TENSOR_KEY.format("out")
    keys.append(f"None if out is None else ({outs}) if out.__class__ is Tensor else spec(out)")
    source = _ENTRY.format(
        arguments=", ".join(names), key=", ".join(keys), gradients=" or ".join(gradients) or "False",
        plain=" and ".join(plain) or "False", settled="".join(settled), recordable="backward" in op.passes,
    )  # fmt: skip
    scope: dict[str, Any] = {
        "PLAIN": PLAIN,
        "Tensor": Tensor,
        "differentiated": functools.cache(lambda: differentiated(op)),
        "dispatch_modes": torch._C._len_torch_dispatch_stack,
        "function_modes": torch._C._len_torch_function_stack,
        "functorch_level": torch._C._functorch.maybe_current_level,
        "get_threads": torch.get_num_threads,
        "grad_enabled": torch.is_grad_enabled,
        "is_compiling": torch.compiler.is_compiling,
        "miss": op._miss,
        "plans": op._plans,
        "find": None,
        "profiler": profiler,
        "quick": None,  # (table, plans) once there are some: see _keep
        "spec": spec,
        "through_torch": op._through_torch,
    }
    exec(source, scope)
    made: Callable[..., Any] = scope["call"]
    return made, scope if "List" not in "".join(str(a.type) for a in arguments) else None
