"""The way into an op: a function written out for its arguments, so that a small call costs about a microsecond."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.autograd import differentiated
from kernelworks.plain import NAMES, PLAIN_TENSOR, WATCHED, exact_type
from kernelworks.written import announce

__all__ = ["entry"]

# One entry per op, written out for its arguments: a loop over them would cost as much again as all the rest. What it
# does not serve, `miss` does. Where there is no compiler for the look-up in C, that is every call.
_ENTRY = """
def call({arguments}, out=None, row=None):
    if is_compiling():
        return through_torch(({arguments},), out, row)
    if {plain} and not ({watched}):
        if grad_enabled() and ({gradients}):
            if {recordable} and out is None{settled}:
                return differentiated()({arguments}, row)
        elif quick is not None and (out is None or (
            out.__class__ is Tensor and not out.is_neg() and not (out.requires_grad and grad_enabled())
        )):
            table, kept = quick
            try:
                found = find(table, get_threads(), row, {arguments}, out)
            except Exception:  # what cannot be described to C (a sparse tensor, say) takes the way below
                found = -1
            if found >= 0:
                if out is not None:
                    announce((out,))
                return kept[found]({arguments}, out=out)
    return miss(({arguments},), out, row)
"""


def entry(op: Any) -> tuple[Callable[..., Any], dict[str, Any] | None]:
    """The function behind ``op(...)``, made from the forward's schema, and its scope: there ``find`` and ``quick`` can
    be set once plans are found in C. None for an op that takes lists, which are not.
    """
    arguments = torch._C.parse_schema(op.passes["forward"].schema).arguments
    names = op.passes["forward"].names
    gradients, plain, settled = [], [], []
    listed = False
    for argument in (a for a in arguments if a.name in names):
        name, kind = argument.name, str(argument.type)
        if kind == "Tensor":
            plain.append(PLAIN_TENSOR.format(name))
            if name not in op.contract.differentiable:  # asking for its gradient is an error, which a check raises
                settled.append(f" and not {name}.requires_grad")
            gradients.append(f"{name}.requires_grad")
        elif kind == "Optional[Tensor]":
            plain.append(f"({name} is None or ({PLAIN_TENSOR.format(name)}))")
            gradients.append(f"({name} is not None and {name}.requires_grad)")
        elif kind.startswith("List"):
            listed = True
        else:
            plain.append(exact_type(name, kind))
    source = _ENTRY.format(
        arguments=", ".join(names), gradients=" or ".join(gradients) or "False", watched=WATCHED,
        plain="False" if listed else " and ".join(plain), settled="".join(settled),
        recordable="backward" in op.passes,
    )  # fmt: skip
    scope: dict[str, Any] = NAMES | {
        "Tensor": Tensor,
        "announce": announce,
        "differentiated": functools.cache(lambda: differentiated(op)),
        "get_threads": torch.get_num_threads,
        "grad_enabled": torch.is_grad_enabled,
        "is_compiling": torch.compiler.is_compiling,
        "miss": op._miss,
        "find": None,
        "quick": None,  # (table, plans) once there are some: see _keep
        "through_torch": op._through_torch,
    }
    exec(source, scope)
    made: Callable[..., Any] = scope["call"]
    return made, None if listed else scope
