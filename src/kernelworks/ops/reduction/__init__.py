"""Reductions along a dimension, and what is made of them."""
