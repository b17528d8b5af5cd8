"""inductor."""
