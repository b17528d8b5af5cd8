"""What silu_mul is benchmarked against on a GPU: Liger's kernel."""

from kernelworks.ops.baselines import liger

__all__ = ["BASELINES"]

BASELINES = liger("swiglu", "LigerSiLUMulFunction", lambda args: (args["gate"], args["up"]))
