"""Traces that somebody else recorded: read with distrust, in bounded memory, into one table of events."""
