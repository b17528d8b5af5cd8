"""Work of the ops that torch has for CUDA only: attention by library. Formulas as in ``formulas``."""

from __future__ import annotations

import math

from kernelworks.diagnose.formulas import Formula
from kernelworks.diagnose.products import pairs
from kernelworks.diagnose.work import Arguments, Operand, Work, together

__all__ = ["CUDA_FORMULAS", "attention", "attention_backward"]


def attention(causal_at: int) -> Formula:
    """``f(q, k, v, ...)`` with q [.., Lq, D]: two products and a softmax over the pairs; argument ``causal_at`` says
    whether they are the lower triangle."""

    def count(a: Arguments) -> Work | None:
        q, k, v = a[0], a[1], a[2]
        if not all(isinstance(o, Operand) and len(o.shape) >= 2 for o in (q, k, v)):
            return None
        scores = pairs(q.shape[-2], k.shape[-2], a[causal_at] is True) * math.prod(q.shape[:-2])
        written = math.prod(q.shape[:-1]) * v.shape[-1] * q.dtype.itemsize
        mask = a[3].bytes if isinstance(a[3], Operand) else 0
        flop = scores * (2.0 * (q.shape[-1] + v.shape[-1]) + 4.0)
        read = together([q, k, v]) + mask
        return Work(flop, scores, read, written, str(q.dtype).removeprefix("torch."))

    return count


def attention_backward(causal_at: int) -> Formula:
    """``f(grad, q, k, v, ...)``: five products over the pairs, which are the scores again and the gradients of v, p, q
    and k; the output and its gradient read, three gradients written."""

    def count(a: Arguments) -> Work | None:
        grad, q, k, v = a[0], a[1], a[2], a[3]
        if not all(isinstance(o, Operand) and len(o.shape) >= 2 for o in (grad, q, k, v)):
            return None
        scores = pairs(q.shape[-2], k.shape[-2], a[causal_at] is True) * math.prod(q.shape[:-2])
        flop = scores * (6.0 * q.shape[-1] + 4.0 * v.shape[-1])
        read = grad.bytes + together([grad, q, k, v])
        return Work(flop, scores, read, q.bytes + k.bytes + v.bytes, str(q.dtype).removeprefix("torch."))

    return count


CUDA_FORMULAS: dict[str, Formula] = {
    "_scaled_dot_product_flash_attention": attention(4),
    "_scaled_dot_product_cudnn_attention": attention(6),
    "_scaled_dot_product_efficient_attention": attention(6),
    "_scaled_dot_product_flash_attention_backward": attention_backward(11),
    "_scaled_dot_product_cudnn_attention_backward": attention_backward(14),
    "_scaled_dot_product_efficient_attention_backward": attention_backward(11),
}
