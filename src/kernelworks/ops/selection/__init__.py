"""Ops that choose among the elements of a line."""
