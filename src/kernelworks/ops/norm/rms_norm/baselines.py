"""What rms_norm is benchmarked against on a GPU: Liger's kernel."""

from typing import Any

from kernelworks.ops.baselines import Args, liger

__all__ = ["BASELINES"]


def _given(args: Args) -> tuple[Any, ...] | None:
    alone = args.get("residual") is None and args.get("weight") is not None
    return (args["x"], args["weight"], args["eps"]) if alone else None


BASELINES = liger("rms_norm", "LigerRMSNormFunction", _given)
