"""Runs a ladder: each rung is verified against float64, benchmarked beside the vendors' libraries, and written up."""
