"""The logits of a large vocabulary are written, widened and read again for the loss, and once more for its gradient."""

from __future__ import annotations

import math

from kernelworks.diagnose.rules.patterns import LOGITS
from kernelworks.diagnose.rules.rule import Advice, Rule, View, replacement_ops

LOSSES = frozenset(
    {
        "cross_entropy_loss",
        "_log_softmax",
        "log_softmax",
        "_log_softmax_backward_data",
        "nll_loss_nd",
        "nll_loss",
        "nll_loss_forward",
        "nll_loss_backward",
    }
)
STEPS = LOSSES | {"to", "_to_copy", "float", "contiguous", "view", "copy_", "pad"}
ROWS, VOCABULARY = 64, 8192  # logits have at least so many rows and columns


def applies(view: View) -> Advice | None:
    rows = view.shapes[0][:-1] if view.shapes and view.shapes[0] else ()
    if view.base_op not in STEPS or math.prod(rows) < ROWS or not rows or view.shapes[0][-1] < VOCABULARY:
        return None
    if view.base_op not in LOSSES and not view.within(LOGITS):
        return None
    ops = replacement_ops(LOGITS)
    said = " or ".join(f"kw.{op}" for op in ops)
    action = f"{said}: the last product and the loss in one op, the logits never stored"
    return Advice("logits stored for the loss", action, 0.5 * view.seconds, 0.9 * view.seconds, ops)


RULE = Rule("stored_logits", applies, ("cuda",))
