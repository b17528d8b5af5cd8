"""A descent on the terminal: of a CPU's program, and of a recorded trace of a GPU's."""

from kernelworks.report.descent.terminal import descent

__all__ = ["descent"]
