"""Positions: how a token knows where it stands."""
