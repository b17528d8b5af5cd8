"""Known-wrong versions of linear_attention: each is the definition in float64 with one thing amiss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.scan.linear_attention.contract import scale_of, sequence_of
from kernelworks.templates.linear_state.mutants import WrongSteps, mutants_of

__all__ = ["MUTANTS"]


def _run(wrong: WrongSteps, *args: Any) -> Any:
    q, k, v, scale, initial_state, final = args
    first = None if initial_state is None else initial_state.double()
    s = sequence_of(q.double(), k.double(), v.double(), scale, first)
    output, state = wrong.run(s._replace(scale=wrong.factor(scale_of(scale, q.shape[3]))))
    return (output.to(q.dtype), state.float()) if final else output.to(q.dtype)


def _positive(x: Tensor) -> Tensor:
    return torch.nn.functional.elu(x) + 1.0


MUTANTS = (
    *mutants_of(_run),
    Mutant(
        "features", lambda q, k, *a: _run(WrongSteps(), _positive(q), _positive(k), *a), "elu + 1 of queries and keys"
    ),
)
