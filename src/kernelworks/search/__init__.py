"""Looks for kernels that are better than what is there: propose, build, judge, keep, refine (docs/search.md)."""
