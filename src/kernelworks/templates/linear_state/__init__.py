"""Sequences whose state forgets and writes without looking at what is there, and what kernels of them get wrong."""
