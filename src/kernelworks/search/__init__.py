"""Looks for kernels that are better than what is there: propose, build, judge, keep, refine (docs/search.md)."""

from kernelworks.search.loop import search

__all__ = ["search"]
