"""Sums over all pairs of points, weighted by how near they are."""
