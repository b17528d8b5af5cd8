"""sites."""
