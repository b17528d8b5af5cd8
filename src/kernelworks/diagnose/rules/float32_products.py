"""A float32 product on the float32 unit; the tf32 unit is several times faster at three digits."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import Advice, Rule, View

PRODUCTS = frozenset({"linear", "mm", "bmm", "addmm", "baddbmm", "matmul", "convolution", "convolution_backward"})


def applies(view: View) -> Advice | None:
    # The unit is that of the product below: under autocast float32 weights are multiplied in 16 bits.
    if view.base_op not in PRODUCTS or view.unit != "float32" or view.bottleneck != "compute":
        return None
    action = "bfloat16, or torch.set_float32_matmul_precision('high') where three digits are enough"
    return Advice("float32 products without tf32", action, 0.0, 0.75 * view.seconds)


RULE = Rule("float32_products", applies, ("cuda",))
