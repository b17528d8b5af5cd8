"""Ops that turn lines into frequencies and back."""
