"""Ops of packed formats: weights of a few bits each, in blocks with a scale."""
