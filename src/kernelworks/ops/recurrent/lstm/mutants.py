"""Known-wrong versions of lstm's cell; the op template adds what any recurrent layer gets wrong."""

from __future__ import annotations

from kernelworks.ops.recurrent.lstm.contract import TEMPLATE, cell
from kernelworks.templates.recurrent import Cell, Values

__all__ = ["MUTANTS"]


def _in_order(*order: int) -> Cell:
    """The gates stand in another order."""
    return lambda x, h, states: cell(tuple(x[i] for i in order), tuple(h[i] for i in order), states)


def _no_forgetting(x: Values, h: Values, states: Values) -> Values:
    i, _, g, o = (a + b for a, b in zip(x, h, strict=True))
    c = states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _no_last_tanh(x: Values, h: Values, states: Values) -> Values:
    _, c = cell(x, h, states)
    return (x[3] + h[3]).sigmoid() * c, c


def _sigmoid_written(x: Values, h: Values, states: Values) -> Values:
    i, f, g, o = (a + b for a, b in zip(x, h, strict=True))
    c = f.sigmoid() * states[1] + i.sigmoid() * g.sigmoid()
    return o.sigmoid() * c.tanh(), c


def _coupled(x: Values, h: Values, states: Values) -> Values:
    i, f, g, o = (a + b for a, b in zip(x, h, strict=True))
    c = f.sigmoid() * states[1] + (1.0 - f.sigmoid()) * g.tanh() + 0.0 * i
    return o.sigmoid() * c.tanh(), c


def _peephole(x: Values, h: Values, states: Values) -> Values:
    _, c = cell(x, h, states)
    return (x[3] + h[3] + 0.01 * c).sigmoid() * c.tanh(), c


MUTANTS = (
    TEMPLATE.mutant("gates i f o g", "the gates' order of other frameworks", _in_order(0, 1, 3, 2)),
    TEMPLATE.mutant("gates f i g o", "input and forget gate change places", _in_order(1, 0, 2, 3)),
    TEMPLATE.mutant("nothing forgotten", "the LSTM of 1997, without a forget gate", _no_forgetting),
    TEMPLATE.mutant("no last tanh", "the state is read as it is", _no_last_tanh),
    TEMPLATE.mutant("sigmoid of g", "what is written is a sigmoid", _sigmoid_written),
    TEMPLATE.mutant("coupled gates", "what is written is what is forgotten", _coupled),
    TEMPLATE.mutant("peephole", "the output gate sees the state", _peephole),
)
