"""A GPU made of fibres: a CUDA source runs on the CPU, under many orders of threads, and every access is seen."""

from kernelworks.learn.emulator.compilation import build_sources
from kernelworks.learn.emulator.request import (
    Argument,
    Emulation,
    Fault,
    Launch,
    Role,
    Traffic,
    emulate,
    run_library,
    thread_orders,
)
from kernelworks.learn.emulator.sentences import fault_sentence, ordered_faults
from kernelworks.learn.emulator.translation import NotTranslated

__all__ = [
    "Argument", "Emulation", "Fault", "Launch", "NotTranslated", "Role", "Traffic", "build_sources", "emulate",
    "fault_sentence", "ordered_faults", "run_library", "thread_orders",
]  # fmt: skip
