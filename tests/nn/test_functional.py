"""swap on modules that a user wrote with torch.nn.functional: rebound on instances, and only there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch import nn as layers
from torch.nn.functional import gelu

from kernelworks.dispatch.op import OPS
from kernelworks.nn import functional
from kernelworks.nn.swap import swap

EPS = 1e-6
SCALE = 1.0


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, EPS)


class Block(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = Norm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def _split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _attention(self, x):
        q, k, v = (self._split(part) for part in self.qkv(x).chunk(3, -1))
        return self.out(attend(q, k, v).transpose(1, 2).reshape(x.shape))

    @staticmethod
    def activation(x):
        return torch.nn.functional.gelu(x, approximate="tanh")

    def forward(self, x):
        x = x + self._attention(self.first(x))
        x = x + self.down(gelu(self.up(self.second(x))))
        return SCALE * x + self.down(self.activation(self.up(x))) * layers.functional.softmax(x, dim=-1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(Block(64, 4) for _ in range(2))
        self.norm = Norm(64)

    def forward(self, ids, target=None):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.embed.weight)
        return logits if target is None else F.cross_entropy(logits.flatten(0, 1), target.flatten())


class Counting(nn.Module):
    """A module whose own globals are read live, and whose name F is also an attribute elsewhere."""

    def forward(self, x):
        return F.gelu(x) * SCALE


class Shadowed(nn.Module):
    def forward(self, x):
        return F.gelu(x) + self.F

    F = 1.0


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def ids() -> torch.Tensor:
    return torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(1))


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert not a.isnan().any()
    assert (a - b).abs().max() <= 500 * 2.0**-24 * max(1.0, float(b.detach().abs().max()))


def prefixed() -> set[str]:
    return {name for name in globals() if name.startswith("__kernelworks_")}


def counting(function, name: str, counts: dict[str, int]):
    def counted(*args):
        result = function(*args)
        counts[name] = counts.get(name, 0) + (result is not NotImplemented)
        return result

    return counted


def test_rebinds_and_gives_back(net, monkeypatch) -> None:
    counts: dict[str, int] = {}
    with torch.no_grad():
        before = net(ids())
        swapped = swap(net, verbose=False)
        ops = {r.path: r.ops for r in swapped.replaced}
        assert ops[""] == ("cross_entropy", "linear")
        assert ops["blocks.0"] == ("gelu", "scaled_dot_product_attention", "softmax")
        assert ops["norm"] == ("rms_norm",)
        for name in ("linear", "rms_norm", "gelu", "softmax", "attention", "layer_norm"):
            OPS[name].entry.ensure_native()  # which the first call would do

            for way in ("call_planned", "call"):  # the first of them takes calls like one before
                monkeypatch.setattr(OPS[name], way, counting(getattr(OPS[name], way), name, counts))
        close(net(ids()), before)
        assert counts == {
            "linear": 13, "rms_norm": 3, "gelu": 4, "softmax": 2, "attention": 2, "layer_norm": 2,
        }  # fmt: skip
        assert prefixed()
        swapped.undo()
        counts.clear()
        assert torch.equal(net(ids()), before)
    assert not counts and not prefixed()
    assert not [name for m in net.modules() for name in ("forward", "_attention", "activation") if name in vars(m)]


def test_other_instances_are_untouched(net) -> None:
    other = Norm(64)
    with swap(net, verbose=False):
        assert "forward" not in vars(other)
        assert type(net.norm).forward is Norm.forward


def test_two_swaps_share_a_module(net) -> None:
    other = Net().eval()
    with torch.no_grad():
        want = other(ids())
        first, second = swap(net, verbose=False), swap(other, verbose=False)
        first.undo()
        close(other(ids()), want)
        second.undo()
    assert not prefixed()


def test_globals_are_read_live(monkeypatch) -> None:
    module, x = Counting(), torch.randn(8, 32)
    with swap(module, verbose=False):
        close(module(x), F.gelu(x))
        monkeypatch.setitem(globals(), "SCALE", 2.0)
        close(module(x), 2 * F.gelu(x))


def test_a_name_used_as_an_attribute_too_is_left() -> None:
    module, x = Shadowed(), torch.randn(8, 32)
    with swap(module, verbose=False) as swapped:
        assert not swapped.replaced
        assert torch.equal(module(x), F.gelu(x) + 1)


def test_training(net) -> None:
    net.train()
    net(ids(), ids()).backward()
    gradients = {n: p.grad.clone() for n, p in net.named_parameters()}
    net.zero_grad()
    with swap(net, verbose=False):
        net(ids(), ids()).backward()
    for name, p in net.named_parameters():
        close(p.grad, gradients[name])


def test_torch_compile(net) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        want = net(ids())
        compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
        with swap(net, verbose=False):
            close(compiled(ids()), want)
    with swap(net, verbose=False):
        loss = torch.compile(net, fullgraph=True, backend="aot_eager")(ids(), ids())
        loss.backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f.softmax(torch.randn(4, 5), dim=0),
        lambda f: f.softmax(torch.randn(4, 5, dtype=torch.float64), dim=-1),
        lambda f: f.softmax(torch.randn(4, 5, dtype=torch.bfloat16), dim=-1, dtype=torch.float32),
        lambda f: f.gelu(torch.randn(4, 5, dtype=torch.float64)),
        lambda f: f.layer_norm(torch.randn(4, 5), (4, 5)),
        lambda f: f.layer_norm(torch.randn(4, 5), (5,)),
        lambda f: f.layer_norm(torch.randn(3, 96, 100), (96, 100), *(torch.randn(96, 100) for _ in range(2))),
        lambda f: f.rms_norm(torch.randn(4, 5), (5,), torch.randn(5)),
        lambda f: f.rms_norm(torch.randn(4, 5), (5,)),
        lambda f: f.linear(torch.randn(5), torch.randn(3, 5), torch.randn(3)),
        lambda f: f.linear(torch.randn(4, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)),
        lambda f: f.cross_entropy(torch.randn(4, 5), torch.tensor([1, 2, -100, 0])),
        lambda f: f.cross_entropy(torch.randn(4, 5), torch.tensor([1, 2, 3, 0]), reduction="sum"),
        lambda f: f.cross_entropy(torch.randn(4, 5), torch.tensor([1, 2, 3, 0]), label_smoothing=0.1),
        lambda f: f.cross_entropy(torch.randn(4, 5), torch.randn(4, 5).softmax(-1)),
        lambda f: f.cross_entropy(torch.randn(5), torch.tensor(2)),
        lambda f: f.scaled_dot_product_attention(*(torch.randn(2, 3, 7, 8) for _ in range(3)), is_causal=True),
        lambda f: f.scaled_dot_product_attention(*(torch.randn(2, 7, 8) for _ in range(3))),
        lambda f: f.scaled_dot_product_attention(
            torch.randn(2, 4, 3, 8), *(torch.randn(2, 2, 7, 8) for _ in range(2)), is_causal=True, enable_gqa=True
        ),
        lambda f: f.scaled_dot_product_attention(
            *(torch.randn(2, 3, 7, 8) for _ in range(3)), attn_mask=torch.randn(7, 7), scale=0.3
        ),
    ],
)
def test_every_call_means_what_torch_means(call) -> None:
    class Ours:
        def __getattr__(self, name):
            return functional.FUNCTIONS[name]

    torch.manual_seed(3)
    want = call(F)
    torch.manual_seed(3)
    got = call(Ours())
    assert got.dtype is want.dtype and got.shape == want.shape
    close(got.double(), want.double())


def test_bad_input_raises_as_before(net) -> None:
    with swap(net, verbose=False), pytest.raises((RuntimeError, ValueError, IndexError)):
        net.blocks[0].qkv(torch.randn(3, 63))


# ---------------------------------------------------------------- gates


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(64, 96), nn.Linear(96, 64), nn.Linear(64, 96)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class GatedByModule(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.SiLU()

    def forward(self, x):
        """Products either way round, and one that is not a gate."""
        return self.w2(self.w3(x) * self.act(self.w1(x))) * 2 + self.act(x)


class Ordered(Gated):
    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x.mul_(2.0)))


@pytest.mark.parametrize("cls", [Gated, GatedByModule])
def test_gates_are_fused(cls, monkeypatch) -> None:
    torch.manual_seed(0)
    module, x = cls(), torch.randn(5, 64)
    want = module(x)
    with swap(module, verbose=False) as swapped:
        assert {r.path: r.ops for r in swapped.replaced}[""] == ("silu_mul",)
        fused = []
        OPS["silu_mul"].entry.ensure_native()
        original = OPS["silu_mul"].call
        monkeypatch.setattr(OPS["silu_mul"], "call_planned", lambda *args: NotImplemented)
        monkeypatch.setattr(OPS["silu_mul"], "call", lambda *args: fused.append(len(args)) or original(*args))
        close(module(x), want)
        assert fused.count(2) == 1  # autograd calls it again from inside, with a kernel
        close(torch.compile(module, fullgraph=True, backend="aot_eager")(x), want)
    assert torch.equal(module(x), want)


def test_a_gate_whose_order_matters_stays() -> None:
    torch.manual_seed(0)
    module, x = Ordered(), torch.randn(5, 64)
    want = module(x.clone())
    with swap(module, verbose=False):
        close(module(x.clone()), want)


def test_a_gate_of_unlike_shapes_still_broadcasts() -> None:
    module, x = GatedByModule(), torch.randn(5, 64)
    module.w3 = nn.Linear(64, 1)
    want = module(x)
    with swap(module, verbose=False):
        close(module(x), want)


def test_a_hooked_activation_is_still_called() -> None:
    module, x, seen = GatedByModule(), torch.randn(5, 64), []
    with swap(module, verbose=False):
        module(x)
        module.act.register_forward_hook(lambda m, args, out: seen.append(1))
        module(x)
    assert len(seen) == 2


def test_parametrized_and_tied_linears() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16, bias=False))
    module[1].weight = module[0].weight
    x = torch.randn(3, 16)
    with swap(module, verbose=False):
        close(module(x), F.linear(F.linear(x, module[0].weight, module[0].bias), module[0].weight))
        nn.utils.parametrizations.weight_norm(module[1])
        module[1].parametrizations.weight.original0.data.mul_(2.0)
        close(module[1](x), F.linear(x, module[1].weight))
