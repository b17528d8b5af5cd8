"""A batch norm by fixed statistics after a convolution: a pass over its output that its weights could do."""

from __future__ import annotations

from kernelworks.diagnose.rules.patterns import FOLDABLE
from kernelworks.diagnose.rules.rule import Advice, Rule, View


def applies(view: View) -> Advice | None:
    part = view.within(FOLDABLE)
    if not part:
        return None
    action = "fold it into the convolution (torch.nn.utils.fusion.fuse_conv_bn_eval), or torch.compile with freezing"
    return Advice("batch norms that convolutions could hold", action, 0.5 * part * view.seconds, part * view.seconds)


RULE = Rule("unfolded_batch_norm", applies, optimization="folded norms")
