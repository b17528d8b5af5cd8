"""What silu_mul is raced against on a GPU: Liger's kernel."""

from kernelworks.ops.peers import liger

__all__ = ["PEERS"]

PEERS = liger("swiglu", "LigerSiLUMulFunction", lambda args: (args["gate"], args["up"]))
