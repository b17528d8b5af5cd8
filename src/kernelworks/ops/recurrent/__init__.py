"""Recurrent layers: a cell that reads an input and its own last state, step after step."""
