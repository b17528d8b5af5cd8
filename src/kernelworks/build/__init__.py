"""Compile and cache. ``cpp`` turns an op package's C++ into one library per instruction set."""

from kernelworks.build.cpp import TARGETS, BuildError, Target, library

__all__ = ["TARGETS", "BuildError", "Target", "library"]
