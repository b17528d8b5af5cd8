"""Mixtures of experts: rows sorted by expert, products with each expert's own weight, and the way back."""
