"""Reductions in stages as entries of a table: the entry, the ops, their launches."""
