"""instance_norm on the GPU: the kernels of its op template (``tile/channel_norm.py``)."""

from typing import Any

from torch import Tensor

from kernelworks.ops.norm.instance_norm.contract import TEMPLATE
from kernelworks.tile.channel_norm import ChannelPasses

RUNNING = ("running_mean", "running_var")


class _Passes(ChannelPasses):
    """A row is a channel of one sample: statistics that are given for channels are handed on for each sample."""

    def forward(self, *args: Any, out: Any = None) -> Tensor:
        return super().forward(*self._for_samples(args), out=out)

    def backward(self, grad: Tensor, *args: Any, out: Any = None) -> tuple[Tensor, ...]:
        return super().backward(grad, *self._for_samples(args), out=out)

    def _for_samples(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        have = dict(zip(self.names, args, strict=False))
        if not self._given(have):
            return args
        samples = have["x"].shape[0]
        return tuple(
            value.expand(samples, -1) if name in RUNNING else value
            for name, value in zip((*self.names, "needs"), args, strict=False)
        )


_PASSES = _Passes(__file__, tuple(TEMPLATE.arguments), TEMPLATE.rows, TEMPLATE.flag)
forward, backward = _PASSES.forward, _PASSES.backward
