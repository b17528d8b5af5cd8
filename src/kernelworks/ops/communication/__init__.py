"""Collectives: what the processes of a group compute together."""
