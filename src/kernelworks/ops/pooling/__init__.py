"""Pooling: one number for each window of a picture."""
