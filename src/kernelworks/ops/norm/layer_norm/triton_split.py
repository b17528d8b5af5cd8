"""layer_norm on the GPU of rows that many programs share (``tile/long_rows/norm.py``)."""

from kernelworks.tile.long_rows.norm import LongRows

_ROWS = LongRows(__file__, ("x", "weight", "bias", "eps"), centred=True)
forward, backward = _ROWS.forward, _ROWS.backward
