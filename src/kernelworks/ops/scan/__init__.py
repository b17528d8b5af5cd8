"""Scans along a dimension and recurrences along a sequence: what each place comes to from all before it."""
