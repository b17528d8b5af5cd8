"""What attention is benchmarked against: torch's function as models call it, and on a GPU its backends by name; for
what that has no word for, FlexAttention."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from kernelworks.ops.baselines import Args, Maker, compiled_whole

__all__ = ["BASELINES", "by_flex", "eager"]


@functools.lru_cache(maxsize=64)
def _seen(lq: int, lk: int, causal: str, window: int | None, device: torch.device) -> Tensor:
    """Which keys each query sees. Cached: a model makes its mask once for all layers."""
    with torch.inference_mode(False):  # whoever asks first: a backward may keep it later
        return _distant(lq, lk, causal, window, device)


def _distant(lq: int, lk: int, causal: str, window: int | None, device: torch.device) -> Tensor:
    query, key = torch.arange(lq, device=device), torch.arange(lk, device=device)
    distance = query[:, None] + (lk - lq if causal == "bottom_right" else 0) - key[None, :]
    return (distance >= 0) & (distance < (lk + lq if window is None else window))


def eager(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None,
    mask: Tensor | None = None, with_lse: bool = False, softcap: float | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``scaled_dot_product_attention``, with a mask that was made before."""
    if softcap is not None or sinks is not None:
        raise ValueError("scaled_dot_product_attention has no softcap and no sinks")
    if with_lse:
        raise ValueError("scaled_dot_product_attention does not return the log-sum-exp")
    lq, lk = q.shape[-2], k.shape[-2]
    if causal == "bottom_right" and lq == 1 and window is None:
        causal = None  # a single query at the end sees all keys: users give no mask then
    plain = causal is None or (window is None and (causal == "top_left" or lq == lk))
    if causal is not None and (mask is not None or not plain):
        seen = _seen(lq, lk, causal, window, q.device)
        mask = seen if mask is None else mask & seen
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal is not None and mask is None, scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip


def _by(backend: SDPBackend, args: Args) -> Callable[[], Any] | None:
    q, k, v = args["q"], args["k"], args["v"]
    causal, one = args.get("causal"), args["q"].shape[-2] == 1
    aligned = causal == "top_left" or q.shape[-2] == k.shape[-2]
    sees_all = causal is None or (causal == "bottom_right" and one)
    told = any(args.get(name) is not None for name in ("window", "mask", "softcap", "sinks"))
    if told or not (sees_all or aligned):
        return None

    def run() -> Any:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=not sees_all, scale=args.get("scale"), enable_gqa=q.shape[1] != k.shape[1]
            )

    return run if q.dtype in (torch.bfloat16, torch.float16) else None


def by_flex(args: Args) -> Callable[[Tensor, Tensor, Tensor], Any] | None:
    """A window, a softcap or sinks by FlexAttention, compiled; its mask is made here, as one is for all layers. Sinks
    are what its users make of its logarithms of sums."""
    causal, window, cap, sinks = (args.get(name) for name in ("causal", "window", "softcap", "sinks"))
    lq, lk = args["q"].shape[-2], args["k"].shape[-2]
    if args.get("mask") is not None or args.get("with_lse") or (causal == "bottom_right" and lq != lk):
        return None

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) if window is None else (j <= i) & (j > i - window)

    def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.tanh(score / softcap) * softcap

    mask = None if causal is None else create_block_mask(sees, None, None, lq, lk, device=args["q"].device)
    how = {"scale": args.get("scale"), "enable_gqa": args["q"].shape[1] != args["k"].shape[1], "block_mask": mask}
    softcap = 1.0 if cap is None else float(cap)
    score = None if cap is None else capped

    def run(query: Tensor, key: Tensor, value: Tensor) -> Any:
        if sinks is None:
            return flex_attention(query, key, value, score_mod=score, **how)
        out, aux = flex_attention(query, key, value, score_mod=score, return_aux=AuxRequest(lse=True), **how)
        return out * torch.sigmoid(aux.lse - sinks[:, None]).unsqueeze(-1).to(out.dtype)

    return compiled_whole(run)


def _flex(args: Args) -> Callable[[], Any] | None:
    plain = all(args.get(name) is None for name in ("window", "softcap", "sinks"))
    run = None if plain else by_flex(args)
    return None if run is None else functools.partial(run, args["q"], args["k"], args["v"])


BASELINES: dict[str, dict[str, Maker]] = {
    "cuda": {
        "flash": functools.partial(_by, SDPBackend.FLASH_ATTENTION),
        "cudnn": functools.partial(_by, SDPBackend.CUDNN_ATTENTION),
        "flex": _flex,
    },
}
