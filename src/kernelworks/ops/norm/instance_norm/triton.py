"""instance_norm on the GPU: the kernels of its op template (``tile/channel_norm.py``)."""

from kernelworks.ops.norm.instance_norm.contract import TEMPLATE
from kernelworks.tile.channel_norm import ChannelPasses

_PASSES = ChannelPasses(__file__, tuple(TEMPLATE.arguments), TEMPLATE.rows, TEMPLATE.flag)
forward, backward = _PASSES.forward, _PASSES.backward
