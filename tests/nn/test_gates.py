"""A product with SiLU is fused only where nobody can tell: side effects, hooks and errors come in the order written."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from outcomes import SEEN, SIZE, same, tried
from torch import nn

from kernelworks.dispatch.hooks import watch_calls
from kernelworks.nn.swap import swap


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3, self.act = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.SiLU()
        self.scale, self.note = 2.0, None

    def zeroed(self, g):
        g.zero_()
        return g + 1

    def other(self, g):
        SEEN.append(round(float(g.detach().double().sum()), 4))
        return g * 2


class Writing(nn.Module):
    """Not named like torch's functions that write."""

    def forward(self, g):
        g.mul_(0.5)
        return g


def gated(body):
    return type(body.__name__, (Gated,), {"forward": body})


def gate_zeroed(self, x):
    g = self.w1(x)
    return F.silu(g) * self.zeroed(g)


def gate_zeroed_by_module(self, x):
    g = self.w1(x)
    return self.act(g) * self.writing(g)


def gate_kept(self, x):
    self.note = g = self.w1(x)
    return F.silu(g) * self.zeroed(self.note)


def gate_read(self, x):
    g = self.w1(x)
    return F.silu(g) * self.other(g)


def gate_written_by_name(self, x):
    g = x * 1
    return F.silu(g) * g.add_(1.0)


def gate_walrus(self, x):
    return F.silu(g := self.w1(x)) * (h := self.w3(g)) + h


def gate_plain(self, x):
    return F.silu(self.w1(x)) * self.w3(x)


def gate_behind(self, x):
    return self.w3(x) * self.act(self.w1(x))


def gate_used_again(self, x):
    g = self.w1(x)
    return self.act(g) * self.w3(x) + g


def gate_scaled(self, x):
    return F.silu(self.w1(x)) * self.scale


def gate_broadcast(self, x):
    return F.silu(self.w1(x)) * self.w3(x)[..., :1]


def gate_itself(self, x):
    g = self.w1(x)
    return F.silu(g) * g


def gate_in_place(self, x):
    g = self.w1(x)
    return F.silu(g, inplace=True) * self.w3(x) + g


def gate_mixed(self, x):
    return F.silu(self.w1(x)) * self.w3(x).double()


def gate_raising(self, x):
    return F.silu(self.w1(x).long()) * self.missing(x)


def gate_result_written(self, x):
    y = F.silu(self.w1(x)) * self.w3(x)
    y.add_(1)
    return y


def gate_fed_in_place(self, x):
    g, u = self.w1(x), self.w3(x)
    y = F.silu(g) * u
    u.add_(1)
    return y + u


GATED = [
    gated(body)
    for body in (
        gate_zeroed, gate_zeroed_by_module, gate_kept, gate_read, gate_written_by_name, gate_walrus, gate_plain,
        gate_behind, gate_used_again, gate_scaled, gate_broadcast, gate_itself, gate_in_place, gate_mixed, gate_raising,
        gate_result_written, gate_fed_in_place,
    )
]  # fmt: skip


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("cls", GATED, ids=lambda cls: cls.__name__)
def test_gates_move_no_side_effect(cls, inplace) -> None:
    torch.manual_seed(0)
    module = cls()
    module.act, module.writing = nn.SiLU(inplace=inplace), Writing()
    for x in (torch.randn(3, SIZE), torch.randn(2, 3, SIZE, dtype=torch.bfloat16), torch.randn(2, SIZE).double()):
        module.to(x.dtype)
        want = tried(module, x)
        with swap(module, verbose=False):
            same(tried(module, x), want, x)
            with torch.no_grad():
                got = _error_or(module, x.clone())
        with torch.no_grad():
            assert _alike(got, _error_or(module, x.clone()), x)


def _error_or(module, x):
    try:
        return module(x)
    except Exception as error:
        return type(error), str(error)


def _alike(a, b, x):
    if isinstance(a, tuple) or isinstance(b, tuple):
        return a == b
    return torch.allclose(a, b, rtol=16 * torch.finfo(x.dtype).eps, atol=16 * torch.finfo(x.dtype).eps)


def geglu_by_word(self, x):
    return F.gelu(self.w1(x), approximate="tanh") * self.w3(x)


def geglu_after(self, x):
    return self.w3(x) * F.gelu(self.w1(x))


def geglu_by_module(self, x):
    return self.act(self.w1(x)) * self.w3(x)


def geglu_of_no_word(self, x):
    return F.gelu(self.w1(x), approximate="heavy") * self.w3(x)


def geglu_scaled(self, x):
    return F.gelu(self.w1(x), approximate="tanh") * self.scale


class TheSame(nn.Module):
    """A GELU that somebody wrote, with what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.act = functools.partial(F.gelu, approximate="tanh")

    def forward(self, input):
        return self.act(input)


ACTIVATIONS = [nn.GELU, functools.partial(nn.GELU, approximate="tanh"), TheSame]
GEGLUS = [(geglu_by_word, 0, True), (geglu_after, 0, True), (geglu_of_no_word, 0, False), (geglu_scaled, 0, False)] + [
    (geglu_by_module, which, True) for which in range(len(ACTIVATIONS))
]


@pytest.mark.parametrize(("body", "which", "fused"), GEGLUS)
def test_a_gate_of_gelu_is_one_op(body, which, fused) -> None:
    torch.manual_seed(0)
    module = gated(body)()
    module.act = ACTIVATIONS[which]()
    plain, ops = copy.deepcopy(module), []
    with swap(module, verbose=False) as swapped, watch_calls(lambda op, *call: ops.append(op.name)):
        assert "gelu_mul" in {r.path: r.ops for r in swapped.replaced}[""]
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            x = torch.randn(2, 3, SIZE).to(dtype)
            ops.clear()
            same(tried(module.to(dtype), x), tried(plain.to(dtype), x), x)
            assert ("gelu_mul" in ops) is (fused and dtype is not torch.float64)


def test_a_gate_of_gelu_follows_what_its_activation_becomes() -> None:
    torch.manual_seed(0)
    module, x = gated(geglu_by_module)(), torch.randn(3, SIZE)
    module.act = TheSame()
    with swap(module, verbose=False):
        for act in (F.gelu, functools.partial(F.gelu, approximate="none"), torch.relu):
            module.act.act = act
            torch.testing.assert_close(module(x), act(module.w1(x)) * module.w3(x))
        module.act = nn.GELU()
        module.act.approximate = "tanh"
        want = F.gelu(module.w1(x), approximate="tanh") * module.w3(x)
        torch.testing.assert_close(module(x), want)


def tripled(kept):
    for gate in kept[-1:]:
        gate.mul_(3)


@pytest.mark.parametrize("which", ["w1", "w3", "act"])
def test_hooks_of_a_gate_run_in_their_order(which) -> None:
    """A hook that writes the gate, kept from where it was made, while the other factor is computed."""
    torch.manual_seed(0)
    module, x, kept = gated(gate_plain)(), torch.randn(3, SIZE), []
    by_module = gated(gate_behind)()
    for m in (module, by_module):
        m.w1.register_forward_hook(lambda m, args, out: kept.append(out))
        getattr(m, which).register_forward_pre_hook(lambda m, args: tripled(kept))
        with torch.no_grad():
            want = m(x)
            with swap(m, verbose=False):
                torch.testing.assert_close(m(x), want)


def test_an_activation_may_change() -> None:
    torch.manual_seed(0)
    module, x = gated(gate_used_again)(), torch.randn(3, SIZE)
    with swap(module, verbose=False):
        for act in (nn.SiLU(), nn.SiLU(inplace=True), nn.GELU(), Writing(), lambda g: g):
            del module.act
            module.act = act
            got = module(x)
            with torch.no_grad():
                other = copy.deepcopy(module)
                torch.testing.assert_close(got, other(x))
