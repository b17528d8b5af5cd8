"""Known-wrong versions of gru's cell; the op template adds what any recurrent layer gets wrong."""

from __future__ import annotations

from kernelworks.ops.recurrent.gru.contract import TEMPLATE, cell
from kernelworks.templates.recurrent import Values

__all__ = ["MUTANTS"]


def _exchanged(x: Values, h: Values, states: Values) -> Values:
    return cell((x[1], x[0], x[2]), (h[1], h[0], h[2]), states)


def _other_way(x: Values, h: Values, states: Values) -> Values:
    return cell((x[0], -x[1], x[2]), (h[0], -h[1], h[2]), states)


def _no_reset(x: Values, h: Values, states: Values) -> Values:
    z, n = (x[1] + h[1]).sigmoid(), (x[2] + h[2]).tanh()
    return ((1.0 - z) * n + z * states[0],)


def _reset_of_all(x: Values, h: Values, states: Values) -> Values:
    r, z = (x[0] + h[0]).sigmoid(), (x[1] + h[1]).sigmoid()
    n = (r * (x[2] + h[2])).tanh()
    return ((1.0 - z) * n + z * states[0],)


def _sigmoid_made(x: Values, h: Values, states: Values) -> Values:
    r, z = (x[0] + h[0]).sigmoid(), (x[1] + h[1]).sigmoid()
    return ((1.0 - z) * (x[2] + r * h[2]).sigmoid() + z * states[0],)


MUTANTS = (
    TEMPLATE.mutant("gates z r n", "reset and update gate change places", _exchanged),
    TEMPLATE.mutant("kept for made", "the update gate says how much is new", _other_way),
    TEMPLATE.mutant("no reset", "the product with the state is not scaled", _no_reset),
    TEMPLATE.mutant("reset of all", "the reset gate scales the input's product, too", _reset_of_all),
    TEMPLATE.mutant("sigmoid of n", "what is new is a sigmoid", _sigmoid_made),
)
