"""``kw.fuse(fn)``: one kernel from a function written in torch, verified when it is made."""

from kernelworks.fuse.fused_function import FusedFunction, fuse
from kernelworks.fuse.trace import FuseError

__all__ = ["FuseError", "FusedFunction", "fuse"]
