"""Which machine is this? Reads what the system says of itself and measures nothing (see ``measure.peaks`` for that)."""

from kernelworks.machine.cpu import Machine, machine
from kernelworks.machine.gpu import Gpu, gpu, has_gpu, may_have_gpu, utilization

__all__ = ["Gpu", "Machine", "gpu", "has_gpu", "kind_of", "machine", "may_have_gpu", "place_of", "utilization"]


def kind_of(device: str) -> str:
    """The kind of machine that a certificate names, by type of device ("cpu", "cuda").

    Raises RuntimeError if there is no such device.
    """
    return gpu().kind if device.startswith("cuda") else machine().kind


def place_of(device: str, kind: str | None = None) -> str:
    """The kind of machine that a tuning record names: what is quickest changes with the number of a CPU's cores, which
    share its memory; what is right does not. Raises RuntimeError if there is no such device.

    ``kind`` is a kind of machine in place of this one.
    """
    kind = kind or kind_of(device)
    return kind if device.startswith("cuda") else f"{kind}-{machine().cores}cores"
