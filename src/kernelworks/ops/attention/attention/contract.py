"""What attention promises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kernelworks.contract.arguments import Arguments, Flag, Number
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.attention.attention import cases
from kernelworks.templates.attention.arguments import CAUSAL, MAX_DIM, SCALE, Window
from kernelworks.templates.attention.op import Attention
from kernelworks.templates.attention.reference import DenseCall, dense_sizes, is_plain, seen_pairs, shift_of

__all__ = ["CONTRACT", "MAX_DIM", "TEMPLATE", "shift_of"]

ARGUMENTS: Arguments = {
    "q": T("B H Lq D", where=(f"1 <= D <= {MAX_DIM}",)),
    "k": T("B Hkv Lk D", like="q", where=("divides(Hkv, H)",)),
    "v": T("B Hkv Lk D", like="q"),
    "causal": CAUSAL, "window": Window(), "scale": SCALE,
    "mask": T("B|1 H|1 Lq|1 Lk|1", dtypes=(torch.bool,), optional=True), "with_lse": Flag(),
    "softcap": Number(least=None, above=0.0, finite=True, optional=True),
    "sinks": T("H", like="q", optional=True),
}  # fmt: skip


def _dims(args: Mapping[str, Any]) -> dict[str, int]:
    q, k = args["q"], args["k"]
    plain = is_plain(args["causal"], args["window"], args["mask"], args.get("softcap"), q, k)
    return dense_sizes(q, k) | {
        "rows": math.prod(q.shape[:3]), "lse": int(args.get("with_lse", True)),
        "plain": int(plain), "causal": int(args["causal"] is not None),
    }  # fmt: skip


TEMPLATE = Attention(
    op_package=__file__,
    formula="output = softmax(scale q k^T, over the keys that a query sees) v; 0 for a query that sees none; with a "
    "softcap c of c tanh(scale q k^T / c); with sinks of one score more, which has no value",
    source="Vaswani et al., Attention Is All You Need, 2017 (arXiv:1706.03762)",
    arguments=ARGUMENTS,
    defaults=dict.fromkeys(list(ARGUMENTS)[3:]) | {"with_lse": False},
    calls=lambda args: (DenseCall({name: value for name, value in args.items() if name != "with_lse"}),),
    count_pairs=lambda args: (
        math.prod(args["q"].shape[:2])
        * seen_pairs(args["q"].shape[2], args["k"].shape[2], args["causal"], args["window"])
    ),
    dims=_dims,
    cases=cases,
    differentiable=("q", "k", "v", "sinks"),
    beside=("mask",),
    switches=("softcap",),
)
CONTRACT = TEMPLATE.contract
