"""Sequences whose state forgets and writes without looking at what is there, on a GPU."""
