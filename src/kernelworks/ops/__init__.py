"""The kernel map: families, each a folder of rooms, one op one room."""

from kernelworks.ops.norm.rms_norm import rms_norm

__all__ = ["rms_norm"]
