"""Optimizers, in place."""
