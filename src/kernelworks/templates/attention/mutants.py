"""Known-wrong versions of dense attention, and how an op of the template makes its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Contract, Mutant
from kernelworks.contract.results import result_dtype
from kernelworks.templates.attention.op import Attention
from kernelworks.templates.attention.reference import apply_softcap, reference, visible

__all__ = ["MUTANTS", "Change", "Mutations", "move_ends", "unwrite_last"]

Change = Callable[[dict[str, Any]], dict[str, Any]]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _exact(args: dict[str, Any]) -> Any:
    q = args["q"]
    wide = args | {name: _wide(args[name]) for name in ("q", "k", "v", "sinks") if args[name] is not None}
    result = tuple(t.to(q.dtype) if i == 0 else t.float() for i, t in enumerate(reference(**wide)))
    return result if args["with_lse"] else result[0]


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, causal: Any = None, window: Any = None, scale: Any = None, mask: Any = None,
    with_lse: bool = False, softcap: Any = None, sinks: Any = None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "q": q, "k": k, "v": v, "causal": causal, "window": window, "scale": scale, "mask": mask, "with_lse": with_lse,
        "softcap": softcap, "sinks": sinks,
    }  # fmt: skip


def _before(change: Change) -> Callable[..., Any]:
    """The right computation of changed arguments."""
    return lambda *args, **named: _exact((a := _arguments(*args, **named)) | change(a))


def _after(change: Callable[[Tensor], Tensor], index: int = 0) -> Callable[..., Any]:
    """One output of the right computation, changed."""

    def run(*args: Any, **named: Any) -> Any:
        result = _exact(_arguments(*args, **named))
        if isinstance(result, tuple):
            return tuple(change(t) if i == index else t for i, t in enumerate(result))
        return change(result) if index == 0 else result

    return run


def _only_seen(a: dict[str, Any], moved: int) -> dict[str, Any]:
    """The diagonal moved by one key."""
    if a["causal"] is None:
        return {}
    seen = visible(a["q"], a["k"], a["causal"], a["window"], None)
    shifted = torch.zeros_like(seen)
    if moved > 0:
        shifted[..., 1:] = seen[..., :-1]
        shifted |= seen
    else:
        shifted[..., :-1] = seen[..., 1:]
        shifted &= seen
    return {"causal": None, "window": None, "mask": shifted if a["mask"] is None else shifted & a["mask"]}


def _other_alignment(a: dict[str, Any]) -> dict[str, Any]:
    return {"causal": {None: None, "top_left": "bottom_right", "bottom_right": "top_left"}[a["causal"]]}


def _other_heads(a: dict[str, Any]) -> dict[str, Any]:
    times = a["q"].shape[1] // a["k"].shape[1]  # head h reads h % Hkv, not h // group
    return {"k": a["k"].repeat(1, times, 1, 1), "v": a["v"].repeat(1, times, 1, 1)}


def _whole_tiles(a: dict[str, Any]) -> dict[str, Any]:
    keys = a["k"].shape[2]
    tail = torch.arange(keys) >= keys // 16 * 16
    seen = visible(a["q"], a["k"], a["causal"], a["window"], a["mask"])
    return {"causal": None, "window": None, "mask": seen & ~tail} if keys > 16 else {}


def _tiled(rescale_sum: bool, rescale_output: bool, low_precision: bool) -> Callable[..., Any]:
    """Online softmax in tiles of 16 keys, with a fault."""

    def run(*args: Any, **named: Any) -> Any:
        a = _arguments(*args, **named)
        q, heads = a["q"].float(), a["q"].shape[1]
        k, v = (a[n].float().repeat_interleave(heads // a[n].shape[1], 1) for n in ("k", "v"))
        scale = 1 / math.sqrt(q.shape[-1]) if a["scale"] is None else a["scale"]
        seen = visible(a["q"], a["k"], a["causal"], a["window"], a["mask"])
        scores = apply_softcap(q @ k.transpose(-1, -2) * scale, a["softcap"]).masked_fill(~seen, -torch.inf)
        m, total, o = torch.full_like(q[..., :1], -1e30), torch.zeros_like(q[..., :1]), torch.zeros_like(q)
        if a["sinks"] is not None:
            m, total = m * 0 + a["sinks"].float()[:, None, None], total + 1
        for j in range(0, k.shape[2], 16):
            s = scores[..., j : j + 16]
            new = torch.maximum(m, s.amax(-1, keepdim=True))
            p, factor = torch.exp(s - new), torch.exp(m - new)
            p = p.bfloat16().float() if low_precision else p
            total = total * (factor if rescale_sum else 1) + p.sum(-1, keepdim=True)
            o = o * (factor if rescale_output else 1) + p @ v[:, :, j : j + 16]
            m = new
        output = torch.where(total > 0, o / total, torch.zeros_like(o)).to(a["q"].dtype)
        return (output, (m + total.log()).squeeze(-1)) if a["with_lse"] else output

    return run


def _otherwise_capped(bend: Callable[[Tensor, Tensor, float, float], Tensor]) -> Callable[..., Any]:
    """``bend(products of q and k, hidden pairs, scale, softcap)`` in place of the scores."""

    def run(*args: Any, **named: Any) -> Any:
        a = _arguments(*args, **named)
        if a["softcap"] is None or a["sinks"] is not None:
            return _exact(a)
        q, heads = a["q"].float(), a["q"].shape[1]
        k, v = (a[n].float().repeat_interleave(heads // a[n].shape[1], 1) for n in ("k", "v"))
        scale = 1 / math.sqrt(q.shape[-1]) if a["scale"] is None else a["scale"]
        hidden = ~visible(a["q"], a["k"], a["causal"], a["window"], a["mask"])
        scores = bend(q @ k.transpose(-1, -2), hidden, scale, a["softcap"])
        none = (scores == -torch.inf).all(-1, keepdim=True)
        output = (torch.softmax(scores.masked_fill(none, 0.0), -1).masked_fill(none, 0.0) @ v).to(a["q"].dtype)
        return (output, torch.logsumexp(scores, -1)) if a["with_lse"] else output

    return run


def _hides_first(products: Tensor, hidden: Tensor, scale: float, softcap: float) -> Tensor:
    return apply_softcap((products * scale).masked_fill(hidden, -torch.inf), softcap)


def _scales_last(products: Tensor, hidden: Tensor, scale: float, softcap: float) -> Tensor:
    return (apply_softcap(products, softcap) * scale).masked_fill(hidden, -torch.inf)


def _clamps(products: Tensor, hidden: Tensor, scale: float, softcap: float) -> Tensor:
    return (products * scale).clamp(-softcap, softcap).masked_fill(hidden, -torch.inf)


def _stops_at_one(products: Tensor, hidden: Tensor, scale: float, softcap: float) -> Tensor:
    return apply_softcap(products * scale, softcap).div(softcap).masked_fill(hidden, -torch.inf)


def _next_sinks(a: dict[str, Any]) -> dict[str, Any]:
    return {} if a["sinks"] is None else {"sinks": a["sinks"].roll(1)}


def _scaled_sinks(a: dict[str, Any]) -> dict[str, Any]:
    scale = 1 / math.sqrt(a["q"].shape[-1]) if a["scale"] is None else a["scale"]
    return {} if a["sinks"] is None else {"sinks": a["sinks"] * scale}


def _stale_tail(output: Tensor) -> Tensor:
    output = output.clone()
    if output.shape[-1] % 16:
        output[..., -1] = 0.0
    return output


MUTANTS = (
    Mutant("causal sees one more", _before(lambda a: _only_seen(a, 1)), "the diagonal is one key too far"),
    Mutant("causal sees one less", _before(lambda a: _only_seen(a, -1)), "a query does not see its own key"),
    Mutant("other alignment", _before(_other_alignment), "top left for bottom right, and back"),
    Mutant("window one more", _before(lambda a: {"window": a["window"] and a["window"] + 1}), "one key too many"),
    Mutant("window ignored", _before(lambda a: {"window": None}), "the window is not applied"),
    Mutant("mask ignored", _before(lambda a: {"mask": None}), "the mask is not applied"),
    Mutant("scale ignored", _before(lambda a: {"scale": None}), "always 1 / sqrt(D)"),
    Mutant("missing scale", _before(lambda a: {"scale": a["scale"] or 1.0}), "the default scale is left out"),
    Mutant("softcap ignored", _before(lambda a: {"softcap": None}), "scores are not capped"),
    Mutant("softcap after the mask", _otherwise_capped(_hides_first), "what is hidden has a score of -softcap"),
    Mutant("softcap before the scale", _otherwise_capped(_scales_last), "what is capped is not scaled yet"),
    Mutant("softcap as a clamp", _otherwise_capped(_clamps), "scores are cut off, not bent"),
    Mutant("softcap not multiplied", _otherwise_capped(_stops_at_one), "tanh(score / softcap) alone"),
    Mutant("sinks ignored", _before(lambda a: {"sinks": None}), "no score joins the denominator"),
    Mutant("sinks of another head", _before(_next_sinks), "head h takes the next one's"),
    Mutant("sinks scaled", _before(_scaled_sinks), "as if they were products of q and k"),
    Mutant("wrong key-value head", _before(_other_heads), "head h reads h % Hkv"),
    Mutant("short tile", _before(_whole_tiles), "keys beyond the last whole vector are left out"),
    Mutant("sum not rescaled", _tiled(False, True, False), "the denominator keeps an old maximum"),
    Mutant("output not rescaled", _tiled(True, False, False), "the output keeps an old maximum"),
    Mutant("bfloat16 weights", _tiled(True, True, True), "the probabilities are rounded to bfloat16"),
    Mutant("NaN for no keys", _after(lambda o: torch.where(o == 0, torch.nan, o)), "a query that sees nothing"),
    Mutant("stale tail", _after(_stale_tail), "the last element of a vector tail is never written"),
    Mutant("zeros", _after(torch.zeros_like), "nothing is written"),
    Mutant("lse in base 2", _after(lambda s: s / math.log(2.0), index=1), "the second output in other units"),
)


# ---------------------------------------------------------------- of the template's ops


class Mutations:
    """How an op of the template is made wrong. Floating-point tensors are widened to ``wide``, for mutants of dense
    attention if it is not float32, which those compute in; results are rounded to the dtypes that the contract
    promises."""

    def __init__(self, template: Attention, contract: Contract, wide: torch.dtype = torch.float32) -> None:
        self.template, self.contract, self.wide = template, contract, wide

    def exact(self, args: dict[str, Any]) -> Any:
        """What a call returns."""
        return self._rounded(self.contract.reference(**self._widened(args)), args)

    def _widened(self, args: dict[str, Any]) -> dict[str, Any]:
        floats = {n: a.to(self.wide) for n, a in args.items() if isinstance(a, Tensor) and a.is_floating_point()}
        return args | floats

    def _rounded(self, outputs: tuple[Tensor, ...], args: dict[str, Any]) -> Any:
        pairs = zip(outputs, self.contract.results_in_order, strict=False)
        result = tuple(output.to(result_dtype(promised, args)) for output, promised in pairs)
        return result if args.get("with_lse") else result[0]

    def before(self, change: Change) -> Callable[..., Any]:
        """The right computation of changed arguments."""

        def run(*given: Any) -> Any:
            args = self.template.named_arguments(given)
            return self.exact(args | change(args))

        return run

    def after(self, change: Callable[[Tensor, dict[str, Any]], Tensor], index: int = 0) -> Callable[..., Any]:
        """One output of the right computation, changed."""

        def run(*given: Any) -> Any:
            args = self.template.named_arguments(given)
            result = self.exact(args)
            if isinstance(result, tuple):
                return tuple(change(t, args) if i == index else t for i, t in enumerate(result))
            return change(result, args) if index == 0 else result

        return run

    def of_dense(self, *names: str) -> tuple[Mutant, ...]:
        """Mutants of dense attention, in every dense call."""
        where = "in each sequence: " if self.template.packed else ""
        known = {mutant.name: mutant for mutant in MUTANTS}
        return tuple(Mutant(name, self._each(known[name]), where + known[name].why) for name in names)

    def _each(self, mutant: Mutant) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            args = self.template.named_arguments(given)
            lse = bool(args.get("with_lse"))
            parts = []
            for call in self.template.calls(args if self.wide == torch.float32 else self._widened(args)):
                made = mutant.run(**call.args, with_lse=lse)
                parts.append(made if lse else (made,))
            queries = args[self.template.tensors[0]]
            return self._rounded(self.template.join(parts, queries, torch.float32 if lse else None), args)

        return run


def move_ends(name: str) -> Change:
    """Sequences end one token late, but for the last."""

    def change(a: dict[str, Any]) -> dict[str, Any]:
        ends = a[name].clone()
        ends[1:-1] = (ends[1:-1] + 1).clamp(max=int(ends[-1]))
        return {name: ends}

    return change


def unwrite_last(output: Tensor, a: dict[str, Any]) -> Tensor:
    """The last sequence's tokens, which nobody wrote to."""
    output = output.clone()
    if len(a["cu_seq_q"]) > 1:
        output[int(a["cu_seq_q"][-2]) :] = 0.0
    return output
