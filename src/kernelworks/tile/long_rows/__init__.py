"""Norms of rows that are too long for one program, on a GPU."""
