"""Which machine is this? Reads what the system says of itself and measures nothing (see ``ceilings`` for that)."""

from kernelworks.machine.cpu import Machine, machine
from kernelworks.machine.gpu import Gpu, gpu, has_gpu

__all__ = ["Gpu", "Machine", "gpu", "has_gpu", "kind_of", "machine"]


def kind_of(device: str) -> str:
    """The kind of machine that a certificate names, for a type of device ("cpu", "cuda").

    Raises RuntimeError where there is no such device.
    """
    return gpu().kind if device.startswith("cuda") else machine().kind
