"""rms_norm on the GPU of rows that many programs share (``tile/long_rows/norm.py``)."""

from kernelworks.ops.norm.rms_norm.contract import TEMPLATE
from kernelworks.tile.long_rows.norm import LongRows

_ROWS = LongRows(__file__, tuple(TEMPLATE.arguments), centred=TEMPLATE.centred)
forward, backward = _ROWS.forward, _ROWS.backward
