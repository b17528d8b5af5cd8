"""Known-wrong versions of attention_fp8. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.attention.attention.contract import visible
from kernelworks.ops.attention.attention_fp8.contract import DTYPES, per_head, reference

__all__ = ["MUTANTS"]

NAMES = ("q", "k", "v", "q_descale", "k_descale", "v_descale", "causal", "scale", "out_dtype")
Change = Callable[[dict[str, Any]], dict[str, Any]]


def _exact(args: dict[str, Any]) -> Tensor:
    wide: dict[str, Any] = {
        name: value.double() if isinstance(value, Tensor) else value for name, value in args.items()
    }
    return reference(**wide)[0].to(DTYPES[args["out_dtype"]])


def _before(change: Change) -> Callable[..., Any]:
    """The right computation of changed arguments."""

    def run(*given: Any) -> Any:
        args = dict(zip(NAMES, given, strict=True))
        return _exact(args | change(args))

    return run


def _after(change: Callable[[Tensor, dict[str, Any]], Tensor]) -> Callable[..., Any]:
    """The right result, changed."""

    def run(*given: Any) -> Any:
        args = dict(zip(NAMES, given, strict=True))
        return change(_exact(args), args)

    return run


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


def _other_heads(a: dict[str, Any]) -> dict[str, Any]:
    times = a["q"].shape[1] // a["k"].shape[1]  # head h reads h % Hkv, not h // group
    if times == 1:
        return {}
    found = {name: a[name].repeat(1, times, 1, 1) for name in ("k", "v")}
    for name in ("q_descale", "k_descale", "v_descale"):
        descale = a[name]
        if descale.dim() and descale.shape[1] > 1:
            found[name] = descale.repeat_interleave(times, 1) if name == "q_descale" else descale.repeat(1, times)
    return found


def _attended(a: dict[str, Any], seen: Tensor, weight: Callable[[Tensor], Tensor] = torch.exp) -> Tensor:
    """The formula with another mask, or with other weights."""
    heads, groups = a["q"].shape[1], a["k"].shape[1]

    def scaled(name: str) -> Tensor:
        tensor: Tensor = a[name].double() * per_head(a[f"{name}_descale"].double(), a[name].shape[1], groups)
        return tensor.repeat_interleave(heads // tensor.shape[1], 1)

    scale = a["q"].shape[3] ** -0.5 if a["scale"] is None else a["scale"]
    scores = (scaled("q") @ scaled("k").mT * scale).masked_fill(~seen, -torch.inf)
    top = scores.amax(-1, keepdim=True) if scores.shape[3] else scores.sum(-1, keepdim=True)
    weights = weight(scores - top.masked_fill(top == -torch.inf, 0.0)) * seen
    total = weights.sum(-1, keepdim=True)
    output: Tensor = weights / total.masked_fill(total == 0, 1.0) @ scaled("v")
    return output.to(DTYPES[a["out_dtype"]])


def _diagonal(by: int) -> Callable[..., Any]:
    """Causal's diagonal moved by so many keys."""

    def run(*given: Any) -> Any:
        a = dict(zip(NAMES, given, strict=True))
        if a["causal"] is None:
            return _exact(a)
        seen = visible(a["q"], a["k"], a["causal"], None, None)
        moved = torch.zeros_like(seen)
        if by > 0:
            moved[..., 1:] = seen[..., :-1]
            return _attended(a, moved | seen)
        moved[..., :-1] = seen[..., 1:]
        return _attended(a, moved & seen)

    return run


def _short(tile: int) -> Change:
    """Keys behind the last whole tile are left out."""

    def change(a: dict[str, Any]) -> dict[str, Any]:
        keys = a["k"].shape[2]
        whole = keys // tile * tile
        return {name: a[name][:, :, :whole] for name in ("k", "v")} if 0 < whole < keys and a["causal"] is None else {}

    return change


def _crude(*given: Any) -> Any:
    """Weights of two bits behind the point."""
    a = dict(zip(NAMES, given, strict=True))
    seen = visible(a["q"], a["k"], a["causal"], None, None)
    return _attended(a, seen, lambda x: torch.exp2((x / 0.6931471805599453).round()))


MUTANTS = (
    *(
        Mutant(f"{name}_descale left out", _before(_one(f"{name}_descale")), "the stored numbers are taken as they are")
        for name in ("q", "k", "v")
    ),
    *(
        Mutant(f"{name}_descale of the first {what}", _before(_first(f"{name}_descale", dim)), "others have their own")
        for dim, (name, what) in enumerate((("q", "batch"), ("v", "head")))
    ),
    Mutant("v_descale twice", _after(lambda o, a: (o * a["v_descale"].max()).to(o.dtype)), "in the values and behind"),
    Mutant("values of keys beside", _before(_moved(_beside)), "a weight meets the next key's value"),
    Mutant("values in memory's order", _before(_moved(_straight)), "weights are in the order of a thread's scores"),
    Mutant("causal sees one more", _diagonal(1), "the diagonal is one key too far"),
    Mutant("causal sees one less", _diagonal(-1), "a query does not see its own key"),
    Mutant("causal ignored", _before(lambda a: {"causal": None}), "keys ahead are seen"),
    Mutant(
        "other alignment",
        _before(lambda a: {"causal": {"top_left": "bottom_right", "bottom_right": "top_left"}.get(a["causal"])}),
        "top left for bottom right, and back",
    ),
    Mutant("scale ignored", _before(lambda a: {"scale": None}), "always 1 / sqrt(D)"),
    Mutant("missing scale", _before(lambda a: {"scale": a["scale"] or 1.0}), "the default scale is left out"),
    Mutant("wrong key-value head", _before(_other_heads), "head h reads h % Hkv"),
    Mutant("short tile", _before(_short(128)), "keys behind the last whole block are left out"),
    Mutant("short chunk", _before(_short(16)), "keys behind the last whole 16 are left out"),
    Mutant("crude weights", _crude, "whole powers of two for exponentials"),
    Mutant("NaN for no keys", _after(lambda o, a: torch.where(o == 0, torch.nan, o)), "a query that sees nothing"),
    Mutant("other dtype", _after(lambda o, a: o.double()), "what out_dtype says is not looked at"),
    Mutant("zeros", _after(lambda o, a: torch.zeros_like(o)), "nothing is written"),
)  # fmt: skip
