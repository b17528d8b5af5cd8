"""add_layer_norm on the GPU: the kernels of its op template (``tile/norm.py``)."""

from kernelworks.ops.norm.add_layer_norm.contract import ARGUMENTS
from kernelworks.tile.norm import NormPasses

_PASSES = NormPasses(__file__, tuple(ARGUMENTS), centred=True)
forward, backward = _PASSES.forward, _PASSES.backward
