"""The account of a run: its wall clock cut into parts, and its calls grouped into hotspots."""
