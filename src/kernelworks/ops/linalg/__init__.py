"""Ops of linear algebra on many small matrices."""
