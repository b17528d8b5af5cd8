"""Known-wrong versions of attention_fp8. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.attention.attention_fp8.contract import CONTRACT, DESCALES, DTYPES, TEMPLATE
from kernelworks.templates.attention.mutants import Change, Mutations
from kernelworks.templates.attention.reference import per_query_head, visible

__all__ = ["MUTANTS"]

WRONG = Mutations(TEMPLATE, CONTRACT, wide=torch.float64)


def _one(name: str) -> Change:
    return lambda a: {name: torch.ones_like(a[name])}


def _first(name: str, dim: int) -> Change:
    """All take the scale of the first batch, or of the first head."""

    def change(a: dict[str, Any]) -> dict[str, Any]:
        descale = a[name]
        return {name: descale.narrow(dim, 0, 1)} if descale.dim() and descale.numel() else {}

    return change


def _moved(order: Callable[[int], Tensor]) -> Change:
    """Weights meet the values of other keys."""
    return lambda a: {"v": a["v"].double()[:, :, order(a["v"].shape[2])]}


def _beside(keys: int) -> Tensor:
    return torch.arange(keys).roll(1)


def _straight(keys: int) -> Tensor:
    """Values in the order of memory for weights in that of a thread's scores: 0 1 8 9 2 3 10 11 and so on."""
    at = torch.arange(keys)
    inside = at % 16
    pair = inside % 4
    moved = at - inside + torch.where(pair < 2, inside // 4 * 2 + pair, 6 + inside // 4 * 2 + pair)
    return torch.where(moved < keys, moved, at)


def _short(tile: int) -> Change:
    """Keys behind the last whole tile are left out."""

    def change(a: dict[str, Any]) -> dict[str, Any]:
        keys = a["k"].shape[2]
        whole = keys // tile * tile
        return {name: a[name][:, :, :whole] for name in ("k", "v")} if 0 < whole < keys and a["causal"] is None else {}

    return change


def _crude(*given: Any) -> Any:
    """Weights of two bits behind the point."""
    a = TEMPLATE.named_arguments(given)
    (call,) = TEMPLATE.calls({n: t.double() if isinstance(t, Tensor) else t for n, t in a.items()})
    q, k, v = call.args["q"], *(per_query_head(call.args[n], a["q"].shape[1]) for n in ("k", "v"))
    seen = visible(q, k, a["causal"], None, None)
    scale = q.shape[3] ** -0.5 if a["scale"] is None else a["scale"]
    scores = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    top = scores.amax(-1, keepdim=True) if scores.shape[3] else scores.sum(-1, keepdim=True)
    exponents = (scores - top.masked_fill(top == -torch.inf, 0.0)) / 0.6931471805599453
    weights = torch.exp2(exponents.round()) * seen
    total = weights.sum(-1, keepdim=True)
    return (weights / total.masked_fill(total == 0, 1.0) @ v).to(DTYPES[a["out_dtype"]])


MUTANTS = (
    *(
        Mutant(f"{name} left out", WRONG.before(_one(name)), "the stored numbers are taken as they are")
        for name in DESCALES
    ),
    *(
        Mutant(f"{name} of the first {what}", WRONG.before(_first(name, dim)), "others have their own")
        for dim, (name, what) in enumerate((("q_descale", "batch"), ("v_descale", "head")))
    ),
    Mutant(
        "v_descale twice", WRONG.after(lambda o, a: (o * a["v_descale"].max()).to(o.dtype)), "in the values and behind"
    ),
    Mutant("values of keys beside", WRONG.before(_moved(_beside)), "a weight meets the next key's value"),
    Mutant(
        "values in memory's order", WRONG.before(_moved(_straight)), "weights are in the order of a thread's scores"
    ),
    Mutant("causal ignored", WRONG.before(lambda a: {"causal": None}), "keys ahead are seen"),
    Mutant("short tile", WRONG.before(_short(128)), "keys behind the last whole block are left out"),
    Mutant("short chunk", WRONG.before(_short(16)), "keys behind the last whole 16 are left out"),
    Mutant("crude weights", _crude, "whole powers of two for exponentials"),
    *WRONG.of_dense(
        "causal sees one more", "causal sees one less", "other alignment", "scale ignored", "missing scale",
        "wrong key-value head", "NaN for no keys", "zeros",
    ),
    Mutant("other dtype", WRONG.after(lambda o, a: o.double()), "what out_dtype says is not looked at"),
)  # fmt: skip
