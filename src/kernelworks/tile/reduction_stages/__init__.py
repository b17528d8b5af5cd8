"""Kernels of reductions in stages."""
