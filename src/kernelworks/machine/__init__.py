"""Which machine is this? Reads what the system says of itself and measures nothing (see ``ceilings`` for that)."""

from kernelworks.machine.cpu import Machine, machine

__all__ = ["Machine", "machine"]
