"""What silu promises. Written by `make docs` from ops/activation/table.py: changes are lost."""

from kernelworks.ops.activation.table import ENTRIES
from kernelworks.templates.activation import template_of

__all__ = ["CONTRACT", "ENTRY", "TEMPLATE"]

ENTRY = ENTRIES["silu"]
TEMPLATE = template_of(ENTRY, __file__)
CONTRACT = TEMPLATE.contract
