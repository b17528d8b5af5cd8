"""The attention template (``op.py``) and what its ops are made of."""
