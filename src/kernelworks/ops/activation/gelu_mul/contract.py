"""What gelu_mul promises."""

from torch import Tensor

from kernelworks.contract.arguments import Word
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.activation.gelu.contract import SMALLEST, U32, change, share, share_error, slope_error
from kernelworks.templates.pointwise import Pointwise, Work

__all__ = ["CONTRACT", "TEMPLATE"]


def slopes_error(grad: Tensor, gate: Tensor, up: Tensor, approximate: str) -> dict[str, Tensor]:
    value, size = share(gate, approximate), gate.abs()
    slope = slope_error(gate, approximate) + U32 * (value + change(gate, approximate).abs())
    gelu = size * (share_error(gate, approximate) + U32 * value) + SMALLEST
    return {"gate": (grad * up).abs() * slope + 2.0 * SMALLEST, "up": grad.abs() * gelu + SMALLEST}


TEMPLATE = Pointwise(
    op_package=__file__,
    formula="output = gelu(gate) up",
    source="Shazeer, GLU Variants Improve Transformer, 2020 (arXiv:2002.05202)",
    arguments={"gate": T("..."), "up": T("...", like="gate"), "approximate": Word("none", "tanh")},
    reference=lambda gate, up, approximate: gate * share(gate, approximate) * up,
    work={"none": Work(forward=29, backward=39, functions=1), "tanh": Work(forward=21, backward=31, functions=1)},
    elementary="tanh",
    sweeps={"both tails": 16.0, "around 0": 1e-2},
    error=lambda output, gate, up, approximate: (
        up.abs() * (gate.abs() * share_error(gate, approximate) + SMALLEST) + U32 * output.abs() + SMALLEST
    ),
    slopes_error=slopes_error,
    reads={"up": ("gate",)},
)
CONTRACT = TEMPLATE.contract
