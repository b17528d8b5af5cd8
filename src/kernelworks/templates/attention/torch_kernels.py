"""Dense attention as torch has it: the function or the formula that a user would write, and cuDNN's by its own name."""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelworks.contract.memory_layout import new_output
from kernelworks.dispatch.aten import aten
from kernelworks.templates.attention.reference import apply_softcap, is_plain, reference, visible, with_sinks

__all__ = ["as_new_output", "composite", "cudnn_gradients", "in_aten", "native", "sink_gradient"]


def as_new_output(q: Tensor, result: Tensor) -> Tensor:
    """``result`` with the strides that every row's output has."""
    output = new_output(q)
    return result if result.stride() == output.stride() and result.dtype == q.dtype else output.copy_(result)


def _torch_causal(
    q: Tensor, k: Tensor, causal: str | None, window: int | None, mask: Tensor | None, softcap: float | None,
    sinks: Tensor | None,
) -> bool | None:  # fmt: skip
    """torch's ``is_causal`` for these options; None where it takes a mask to say them, or cannot."""
    return causal is not None if sinks is None and is_plain(causal, window, mask, softcap, q, k) else None


def _torch_takes_cudnn(q: Tensor, k: Tensor, v: Tensor, is_causal: bool | None, scale: float | None) -> bool:
    """Whether torch would choose cuDNN's kernel, whose lse it can hand out and take back."""
    if not q.is_cuda or is_causal is None or not (q.numel() and k.numel()):
        return False
    grouped = bool(q.shape[1] != k.shape[1])  # a tensor while torch.jit traces
    choice = torch._fused_sdp_choice(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=grouped)
    return int(choice) == int(SDPBackend.CUDNN_ATTENTION.value)


def _seen(q: Tensor, k: Tensor, causal: str | None, window: int | None, mask: Tensor | None) -> Tensor:
    """The mask as it is, and what the words say for one sequence and head: torch spreads it over the others, without a
    copy."""
    if causal is None and mask is not None:
        return mask
    words = visible(q[:1, :1], k[:1, :1], causal, window, None)
    return words if mask is None else words & mask


def _sees(causal: str | None, window: int | None, q: Tensor, k: Tensor) -> bool:
    """Whether each query sees a key by the words alone."""
    queries, keys = q.shape[2], k.shape[2]
    return queries <= keys if causal == "bottom_right" else keys > 0 and (window is None or queries < keys + window)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    softcap: float | None, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    if softcap is not None or sinks is not None:
        return _written(q, k, v, causal, window, scale, mask, softcap, sinks)
    grouped = bool(q.shape[1] != k.shape[1])  # a tensor while torch.jit traces
    is_causal = _torch_causal(q, k, causal, window, mask, softcap, sinks)
    if is_causal is not None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=grouped)
    seen = _seen(q, k, causal, window, mask)
    result = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)
    some = mask is None and _sees(causal, window, q, k)
    return result if some else result.masked_fill(~seen.any(-1, keepdim=True), 0.0)


def _written(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    softcap: float | None, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """What torch has no function for, as models write it: the matrix of scores, the softmax in float32."""
    key, value = (t.repeat_interleave(q.shape[1] // max(t.shape[1], 1), dim=1) for t in (k, v))
    scores = q @ key.mT * (1.0 / math.sqrt(q.shape[3]) if scale is None else scale)
    if softcap is not None:  # float16 holds neither a score over a large cap nor a gradient times one
        scores = apply_softcap(scores.float() if q.dtype is torch.float16 else scores, softcap)
    hides = causal is not None or mask is not None
    seen = _seen(q, k, causal, window, mask) if hides else None
    if sinks is not None:
        scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
        return torch.softmax(with_sinks(scores, sinks), -1, torch.float32)[..., :-1].to(q.dtype) @ value
    if seen is None or (mask is None and _sees(causal, window, q, k)):
        scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
        return torch.softmax(scores, -1, torch.float32).to(q.dtype) @ value
    any_seen = seen.any(-1, keepdim=True)
    hidden = scores.masked_fill(~seen & any_seen, -torch.inf)  # where none is seen the softmax would give NaN
    return (torch.softmax(hidden, -1, torch.float32).to(q.dtype) @ value).masked_fill(~any_seen, 0.0)


# sdpa_kernel sets what the whole process takes and puts it back: two threads at once would put back each other's.
_MATH = threading.RLock()


def composite(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None = None, window: int | None = None, scale: float | None = None,
    mask: Tensor | None = None, with_lse: bool = False, softcap: float | None = None, sinks: Tensor | None = None,
) -> Any:  # fmt: skip
    """torch's function with its own formula, where that has to be differentiated by a transform, or twice: none of its
    kernels is."""
    if q.is_nested or q.layout is not torch.strided:
        return _sdpa(q, k, v, causal, window, scale, mask, softcap, sinks)
    with _MATH, sdpa_kernel(SDPBackend.MATH):
        result = _sdpa(q, k, v, causal, window, scale, mask, softcap, sinks)
    output = result.transpose(1, 2).contiguous().transpose(1, 2)  # as every row lays it out
    if not with_lse:
        return output
    return output, _lse(q, k, v, causal, window, scale, mask, softcap, sinks)


def _lse(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    softcap: float | None, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    exact = None if sinks is None else sinks.float()
    return reference(q.float(), k.float(), v.float(), causal, window, scale, mask, True, softcap, exact)[1]


def native(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    with_lse: bool, softcap: float | None, sinks: Tensor | None,
) -> Any:  # fmt: skip
    """torch's function, whichever kernel it takes, and what that hands out."""
    if not with_lse:
        return _sdpa(q, k, v, causal, window, scale, mask, softcap, sinks)
    is_causal = _torch_causal(q, k, causal, window, mask, softcap, sinks)
    if _torch_takes_cudnn(q, k, v, is_causal, scale):
        output, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, is_causal, False, scale=scale
        )
        return as_new_output(q, output), lse.view(q.shape[:3])
    output = _sdpa(q, k, v, causal, window, scale, mask, softcap, sinks)
    return as_new_output(q, output), _lse(q, k, v, causal, window, scale, mask, softcap, sinks)


def in_aten(
    q: Any, k: Any, v: Any, causal: str | None, window: int | None, scale: float | None, mask: Any, with_lse: bool,
    softcap: float | None, sinks: Any,
) -> Any:  # fmt: skip
    is_causal = None if with_lse else _torch_causal(q, k, causal, window, mask, softcap, sinks)
    if is_causal is None:
        return None
    return aten(
        "scaled_dot_product_attention", q, k, v, is_causal=is_causal, scale=scale,
        enable_gqa=bool(q.shape[1] != k.shape[1]),
    )  # fmt: skip


def cudnn_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, causal: str | None, window: int | None,
    scale: float | None, mask: Tensor | None, needs: list[bool], softcap: float | None, sinks: Tensor | None,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    """Those of cuDNN's kernel, where ``native`` took it; else None."""
    is_causal = _torch_causal(q, k, causal, window, mask, softcap, sinks)
    if not (lse.numel() and _torch_takes_cudnn(q, k, v, is_causal, scale)):
        return None
    none = torch.empty(0, dtype=torch.int64, device=q.device)  # of dropout, which there is not
    found: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, output, lse.unsqueeze(-1), none, none, None, None, None, q.shape[2], k.shape[2], 0.0, is_causal,
        scale=scale,
    )  # fmt: skip
    return found


def sink_gradient(grad: Tensor, output: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """What the softmax's other weights leave to a score without a value; empty where there are no sinks."""
    if sinks is None:
        return grad.new_empty(0)
    delta = (grad.float() * output.float()).sum(-1)
    weight = torch.exp(sinks.float()[:, None] - lse)
    return (weight * delta).sum((0, 2)).neg().to(sinks.dtype)
