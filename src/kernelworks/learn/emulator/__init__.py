"""A GPU made of fibres: a CUDA source runs on the CPU, under many orders of threads, and every access is seen."""

from kernelworks.learn.emulator.request import Argument, Emulation, Role, emulate, thread_orders
from kernelworks.learn.emulator.translation import NotTranslated

__all__ = ["Argument", "Emulation", "NotTranslated", "Role", "emulate", "thread_orders"]
