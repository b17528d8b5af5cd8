"""A GPU made of fibres: a CUDA source runs on the CPU, under many orders of threads, and every access is seen."""

from kernelworks.learn.emulator.request import Argument, Emulation, Fault, Role, emulate, thread_orders
from kernelworks.learn.emulator.sentences import fault_sentence, ordered_faults
from kernelworks.learn.emulator.translation import NotTranslated

__all__ = [
    "Argument", "Emulation", "Fault", "NotTranslated", "Role", "emulate", "fault_sentence", "ordered_faults",
    "thread_orders",
]  # fmt: skip
