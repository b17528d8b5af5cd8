"""What layer_norm is benchmarked against on a GPU: Liger's kernel."""

from typing import Any

from kernelworks.ops.baselines import Args, liger

__all__ = ["BASELINES"]


def _given(args: Args) -> tuple[Any, ...] | None:
    whole = args.get("weight") is not None and args.get("bias") is not None
    return (args["x"], args["weight"], args["bias"], args["eps"]) if whole else None


BASELINES = liger("layer_norm", "LigerLayerNormFunction", _given)
