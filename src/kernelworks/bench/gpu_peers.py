"""What we race on a GPU beside torch eager and torch.compile: Liger's kernels, and attention's backends by name.

Liger (pip install liger-kernel) is raced where it imports. A peer declines (None) what it does not do.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["GPU_PEERS"]

Args = Mapping[str, Any]
Prepared = Callable[[], Any] | None


def _liger(module: str, function: str) -> Any:
    """Liger's autograd function, or None where Liger is not installed or has no such thing."""
    try:
        return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), function, None)
    except Exception:  # whatever an incompatible release raises when it is imported
        return None


def _liger_rms_norm(args: Args) -> Prepared:
    peer = _liger("rms_norm", "LigerRMSNormFunction")
    if peer is None or args.get("residual") is not None or args.get("weight") is None:
        return None
    return functools.partial(peer.apply, args["x"], args["weight"], args["eps"])


def _liger_layer_norm(args: Args) -> Prepared:
    peer = _liger("layer_norm", "LigerLayerNormFunction")
    if peer is None or args.get("weight") is None or args.get("bias") is None:
        return None
    return functools.partial(peer.apply, args["x"], args["weight"], args["bias"], args["eps"])


def _liger_silu_mul(args: Args) -> Prepared:
    peer = _liger("swiglu", "LigerSiLUMulFunction")
    return None if peer is None else functools.partial(peer.apply, args["gate"], args["up"])


def _liger_softmax(args: Args) -> Prepared:
    peer = _liger("softmax", "LigerSoftmaxFunction")
    if peer is None or args["dim"] not in (-1, args["x"].dim() - 1):
        return None
    return functools.partial(peer.apply, args["x"])


def _attention_by(backend: SDPBackend, args: Args) -> Prepared:
    q, k, v = args["q"], args["k"], args["v"]
    causal, one = args.get("causal"), args["q"].shape[-2] == 1
    aligned = causal == "top_left" or q.shape[-2] == k.shape[-2]
    sees_all = causal is None or (causal == "bottom_right" and one)
    if args.get("window") is not None or args.get("mask") is not None or not (sees_all or aligned):
        return None

    def run() -> Any:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=not sees_all, scale=args.get("scale"), enable_gqa=q.shape[1] != k.shape[1]
            )

    return run if q.dtype in (torch.bfloat16, torch.float16) else None


def _fused_adamw(args: Args) -> Prepared:
    """torch's fused AdamW, which a user asks for with ``fused=True``."""
    beta1, beta2 = args["beta1"], args["beta2"]
    lists = [list(args[name]) for name in ("params", "grads", "exp_avgs", "exp_avg_sqs")]
    if any(t.dtype != lists[0][0].dtype for group in lists for t in group):
        return None
    # the operator counts a step before it uses it only in the optimiser; here the number is that of this step
    steps = [torch.full((), float(args["step"]), device=lists[0][0].device) for _ in lists[0]]
    function: Any = torch._fused_adamw_
    return functools.partial(
        function, *lists, [], steps, lr=args["lr"], beta1=beta1, beta2=beta2, weight_decay=args["weight_decay"],
        eps=args["eps"], amsgrad=False, maximize=False,
    )  # fmt: skip


# By op, then by the arm's name.
GPU_PEERS: dict[str, dict[str, Callable[[Args], Prepared]]] = {
    "rms_norm": {"liger": _liger_rms_norm},
    "layer_norm": {"liger": _liger_layer_norm},
    "silu_mul": {"liger": _liger_silu_mul},
    "softmax": {"liger": _liger_softmax},
    "adamw_": {"fused": _fused_adamw},
    "attention": {
        "flash": functools.partial(_attention_by, SDPBackend.FLASH_ATTENTION),
        "cudnn": functools.partial(_attention_by, SDPBackend.CUDNN_ATTENTION),
    },
}
