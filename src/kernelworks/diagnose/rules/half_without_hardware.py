"""A float16 product on a CPU that multiplies no float16: torch takes a scalar path, at a hundredth of the peak."""

from __future__ import annotations

from kernelworks.diagnose.rules.rule import REACH, Advice, Rule, View

PRODUCTS = frozenset({"linear", "mm", "bmm", "addmm", "baddbmm", "matmul", "convolution", "conv2d", "conv1d"})


def applies(view: View) -> Advice | None:
    if view.op not in PRODUCTS or view.unit != "float16" or view.achieved_share >= 0.1:
        return None
    action = f"swap in {view.kernel}" if view.kernel else "use float32: this CPU does not multiply float16"
    return Advice("float16 products without hardware for them", action, view.excess(REACH), view.excess())


RULE = Rule("half_without_hardware", applies, ("cpu",))
