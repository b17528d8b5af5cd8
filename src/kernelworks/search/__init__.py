"""Looks for kernels that are better than what is there: propose, build, judge, keep, refine.

docs/reference/search.md describes it."""

from kernelworks.search.loop import search

__all__ = ["search"]
