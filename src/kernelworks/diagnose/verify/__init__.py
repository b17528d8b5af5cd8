"""Whether a changed module or program gives the same answers."""
