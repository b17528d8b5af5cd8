"""The way into an op: a function written out for its arguments, so that a small call costs about a microsecond."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
        wanted = ({wanted}) if grad_enabled() else 0
        if quick is not None and (out is None or (
            not wanted and out.__class__ is Tensor and not out.is_neg() and not out.is_inference()
            and not (out.requires_grad and grad_enabled())
        )):
            table, kept = quick
            try:
                found = find(table, get_threads(), row, {look}, wanted, out)
            except Exception:  # what cannot be described to C (a sparse tensor, say) takes the way below
                found = -1
            if found >= 0:
                if out is not None:
                    increment_version((out,))
                {announce}
                return kept[found]({arguments}, out=out)
    return miss(({arguments},), out, row)


def look({arguments}):
    return {look},
"""


def entry(op: Any) -> dict[str, Any]:
    """The function behind ``op(...)``, made from the forward's schema, as ``call`` in its scope.

    There ``find`` and ``quick`` can be set once plans are found in C, by what ``look(*arguments)`` returns and which
    arguments autograd wants gradients of, a bit each.
    """
    arguments = torch._C.parse_schema(op.passes["forward"].schema).arguments
    names, free = op.passes["forward"].names, op.passes["forward"].free
    gradients, plain, look = [], [], []
    for place, argument in enumerate(a for a in arguments if a.name in names):
        name, kind = argument.name, str(argument.type)
        if kind == "Tensor":
            plain.append(PLAIN_TENSOR.format(name))
            gradients.append(f"{name}.requires_grad << {place}")
        elif kind == "Optional[Tensor]":
            plain.append(f"({name} is None or ({PLAIN_TENSOR.format(name)}))")
            gradients.append(f"({name} is not None and {name}.requires_grad) << {place}")
        elif kind.startswith("List"):
            plain.append(f"({name}.__class__ is list or {name}.__class__ is tuple)")
            plain.append(f"not [1 for v in {name} if not ({PLAIN_TENSOR.format('v')})]")
            gradients.append(f"any([v.requires_grad for v in {name}]) << {place}")
        else:
            plain.append(f"free_{name}({name})" if name in free else exact_type(name, kind))
        look += [f"len({name}), *{name}"] if kind.startswith("List") else [] if name in free else [name]
    source = _ENTRY.format(
        arguments=", ".join(names), wanted=" | ".join(gradients) or "0", watched=WATCHED,
        plain=" and ".join(plain), look=", ".join(look),
        announce=f"announce([{', '.join('*' + n for n in op.contract.mutates)}])" if op.contract.mutates else "",
    )  # fmt: skip
    scope: dict[str, Any] = NAMES | {
        "Tensor": Tensor,
        "announce": announce,
        "get_threads": torch.get_num_threads,
        "grad_enabled": torch.is_grad_enabled,
        "increment_version": torch._C._increment_version,
        "is_compiling": torch.compiler.is_dynamo_compiling,  # other compilers are modes, which are asked for below
        "miss": op._miss,
        "find": None,
        "quick": None,  # (table, plans) once there are some: see found_by
        "through_torch": op._through_torch,
    }
    scope |= {f"free_{name}": test for name, test in free.items()}
    exec(source, scope)
    return scope
