"""kw.nn's modules and kw.AdamW stand where torch's stood: same arguments, state, repr, pickles, results."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.dispatch.hooks import watch_calls
from kernelworks.machine import environment

ids = torch.tensor([[1, 0, 3], [2, 3, 1]])
x = torch.randn(2, 3, 8)
logits, target = torch.randn(5, 7), torch.tensor([0, 6, 3, -100, 2])

# class, arguments, inputs
MODULES: tuple[tuple[str, tuple[Any, ...], dict[str, Any], tuple[Tensor, ...]], ...] = (
    ("Linear", (8, 4), {}, (x,)),
    ("Linear", (8, 4), {"bias": False, "dtype": torch.float64}, (x.double(),)),
    ("Linear", (8, 4), {"dtype": torch.bfloat16}, (x.bfloat16(),)),
    ("LayerNorm", (8,), {}, (x,)),
    ("LayerNorm", ((3, 8),), {"eps": 1e-3}, (x,)),
    ("LayerNorm", (8,), {"bias": False}, (x,)),
    ("LayerNorm", (8,), {"elementwise_affine": False}, (x,)),
    ("RMSNorm", (8,), {}, (x,)),
    ("RMSNorm", ([8],), {"eps": 1e-3, "elementwise_affine": False}, (x,)),
    ("GELU", (), {}, (x,)),
    ("GELU", ("tanh",), {}, (x,)),
    ("ReLU", (), {}, (x,)),
    ("Softmax", (), {"dim": 1}, (x,)),
    ("Softmax2d", (), {}, (x,)),
    ("LogSoftmax", (), {}, (x,)),
    ("LogSoftmax", (-1,), {}, (x,)),
    ("Embedding", (4, 8), {}, (ids,)),
    ("Embedding", (4, 8), {"padding_idx": 1, "max_norm": 1.0, "scale_grad_by_freq": True}, (ids,)),
    ("Embedding", (4, 8), {"padding_idx": -1}, (ids,)),
    ("Embedding", (4, 8), {"sparse": True, "dtype": torch.float64}, (ids,)),
    ("CrossEntropyLoss", (), {}, (logits, target)),
    ("CrossEntropyLoss", (), {"label_smoothing": 0.1, "weight": torch.rand(7), "reduction": "sum"}, (logits, target)),
    ("CrossEntropyLoss", (), {"ignore_index": 3, "reduction": "none"}, (logits, target.clamp(0))),
)


def results(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The output, and gradients by the input and the parameters."""
    inputs = tuple(t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in inputs)
    output = module(*inputs)
    leaves = [t for t in (*inputs, *module.parameters()) if t.requires_grad]
    if not leaves:
        return [output]
    module.zero_grad()
    output.backward(torch.linspace(0, 1, output.numel()).reshape(output.shape).to(output.dtype))
    return [output, *(t.grad.to_dense() for t in leaves if t.grad is not None)]


@pytest.mark.parametrize("case", range(len(MODULES)))
def test_a_module_stands_for_torchs(case: int) -> None:
    name, args, named, inputs = MODULES[case]
    torch.manual_seed(0)
    torchs = getattr(nn, name)(*args, **named)
    torch.manual_seed(0)
    ours = getattr(kw.nn, name)(*args, **named)
    assert isinstance(ours, type(torchs)) and repr(ours) == repr(torchs)
    assert inspect.signature(type(ours)) == inspect.signature(type(torchs))
    for a, b in zip(torchs.state_dict().values(), ours.state_dict().values(), strict=True):
        assert torch.equal(a, b)  # made by the same random numbers
    again = type(ours)(*args, **named)
    again.load_state_dict(torchs.state_dict())
    for module in (ours, again, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(module) is type(ours)
        for got, want in zip(results(module, inputs), results(torchs, inputs), strict=True):
            assert got.dtype is want.dtype
            torch.testing.assert_close(got, want, rtol=2e-2 if got.dtype is torch.bfloat16 else 2e-5, atol=2e-5)


def test_modules_compile_whole_and_cast_as_torchs() -> None:
    class Program(nn.Module):
        def __init__(self, of: Any) -> None:
            super().__init__()
            self.table, self.norm, self.up = of.Embedding(4, 8), of.LayerNorm(8), of.Linear(8, 16)
            self.act, self.last, self.soft = of.GELU(), of.RMSNorm(16, eps=1e-5), of.Softmax(-1)

        def forward(self, ids: Tensor) -> Tensor:
            return self.soft(self.last(self.act(self.up(self.norm(self.table(ids))))))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    torchs = Program(nn)
    ours = Program(kw.nn)
    ours.load_state_dict(torchs.state_dict())
    want = torchs(ids)
    torch.testing.assert_close(torch.compile(ours, fullgraph=True, backend="eager")(ids), want)
    for model in (torchs, ours):
        model.double()
    torch.testing.assert_close(ours(ids), torchs(ids), rtol=0, atol=0)
    for model in (torchs, ours):
        model.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(ids).dtype is torchs(ids).dtype


@pytest.mark.parametrize(
    ("module", "shown", "activation"),
    [
        (kw.nn.SiluMul(), "SiluMul()", nn.SiLU()),
        (kw.nn.GeluMul(), "GeluMul(approximate='none')", nn.GELU()),
        (kw.nn.GeluMul("tanh"), "GeluMul(approximate='tanh')", nn.GELU("tanh")),
    ],
)
def test_the_gates(module: nn.Module, shown: str, activation: nn.Module) -> None:
    gate, up = torch.randn(3, 4, 8).unbind(0)[:2]
    assert repr(module) == shown and not module.state_dict()
    torch.testing.assert_close(module(gate, up), activation(gate) * up)


padded = torch.tensor([[False, False, True], [False, False, False]])
ATTENDED: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({}, {"need_weights": False}),
    ({"batch_first": True}, {"need_weights": False, "attn_mask": torch.ones(3, 3).triu(1).bool()}),
    ({"batch_first": True, "bias": False}, {"need_weights": False, "key_padding_mask": padded}),
    ({"batch_first": True}, {"average_attn_weights": False, "attn_mask": torch.randn(3, 3)}),
    ({"add_bias_kv": True, "add_zero_attn": True, "dtype": torch.float64}, {"need_weights": False}),
    ({"kdim": 8, "vdim": 8, "dropout": 0.5}, {"need_weights": False}),
)


@pytest.mark.parametrize("case", range(len(ATTENDED)))
@pytest.mark.parametrize("training", [True, False])
def test_attention_of_many_heads_stands_for_torchs(case: int, training: bool) -> None:
    made, asked = ATTENDED[case]
    torch.manual_seed(0)
    torchs = nn.MultiheadAttention(8, 2, **made).train(training)
    ours = kw.nn.MultiheadAttention(8, 2, **made).train(training)
    ours.load_state_dict(torchs.state_dict())
    assert repr(ours) == repr(torchs)
    found = []
    for module in (torchs, ours):
        given = x.detach().to(made.get("dtype", torch.float32)).requires_grad_(training)
        torch.manual_seed(1)  # dropout
        output, weights = module(given, given, given, **asked)
        gradients = torch.autograd.grad(output.square().sum(), [given, *module.parameters()]) if training else ()
        found.append((output, *([] if weights is None else [weights]), *gradients))
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def test_attention_of_many_heads_calls_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    module, called = kw.nn.MultiheadAttention(8, 2), []
    with watch_calls(lambda op, *call: called.append(op.name)):
        module(x, x, x, need_weights=False)
        module(x, x, x)
    assert {"linear", "attention", "softmax"} <= set(called)


def test_a_swap_leaves_them_as_they_are() -> None:
    swapped = kw.swap(nn.Sequential(kw.nn.Linear(4, 4), kw.nn.GELU()), verbose=False)
    assert {item.reason for item in swapped.left} == {"a module of kernelworks' own"}
    swapped.undo()


# ---------------------------------------------------------------- AdamW

Asks = dict[str, Any]
ASKED: tuple[Asks, ...] = (
    {},
    {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2},
    {"maximize": True},
    {"amsgrad": True},
    {"foreach": True},
    {"fused": True},
    {"foreach": False},
    {"capturable": True},
    {"lr": torch.tensor(0.01)},
    {"lr": 1},
)


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes: tuple[tuple[int, ...], ...] = ((5, 4), (7,), (), (2, 3, 3))
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def loss_of(params: list[nn.Parameter]) -> Tensor:
    return sum((p * p.detach().cos()).sum() for p in params)  # type: ignore[return-value]


def train(
    optimizer: type[torch.optim.Optimizer], asked: Asks, steps: int = 4, dtype: torch.dtype = torch.float32
) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    params = parameters(dtype)
    groups = [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}]
    made = optimizer(groups, **asked)
    for step in range(steps):
        made.zero_grad()
        loss_of(params if step else params[:3]).backward()  # one parameter begins a step later
        made.step()
    return params, made


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each call of the op stepped, with its first kernel that may run taken."""
    from kernelworks.nn import optim

    monkeypatch.setenv("KERNELWORKS_CHOOSE", "listed")
    kw_step, seen = optim.adamw_, []
    monkeypatch.setattr(optim, "_chosen", lambda step, lists, named: True)
    monkeypatch.setattr(optim, "adamw_", lambda *lists, **named: (seen.append(len(lists[0])), kw_step(*lists, **named)))
    return seen


@pytest.mark.parametrize("case", range(len(ASKED)))
@pytest.mark.filterwarnings("ignore:.*capturable.*")
def test_adamw_steps_as_torchs(case: int, stepped: list[int]) -> None:
    asked = ASKED[case]
    try:
        want, torchs = train(torch.optim.AdamW, asked)
    except Exception as error:
        with pytest.raises(type(error)):
            train(kw.AdamW, asked)
        return
    got, ours = train(kw.AdamW, asked)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    plain = asked.keys() <= {"lr", "betas", "eps", "weight_decay", "maximize"} and not isinstance(
        asked.get("lr"), Tensor
    )
    assert bool(stepped) is plain
    one, other = ours.state_dict(), torchs.state_dict()
    assert one["param_groups"] == other["param_groups"]
    for key, state in other["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(one["state"][key][name], value, rtol=1e-5, atol=1e-7)
            assert one["state"][key][name].device == value.device


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_adamw_of_other_dtypes(dtype: torch.dtype) -> None:
    (want, _), (got, _) = train(torch.optim.AdamW, {}, dtype=dtype), train(kw.AdamW, {}, dtype=dtype)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2 if dtype is torch.bfloat16 else 0, atol=1e-6)


def test_state_goes_both_ways(stepped: list[int]) -> None:
    want, torchs = train(torch.optim.AdamW, {}, steps=8)
    for first, second in ((torch.optim.AdamW, kw.AdamW), (kw.AdamW, torch.optim.AdamW)):
        params, made = train(first, {}, steps=4)
        groups = [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}]
        after = second(groups)
        after.load_state_dict(pickle.loads(pickle.dumps(made.state_dict())))
        for _ in range(4):
            after.zero_grad()
            loss_of(params).backward()
            after.step()
        for a, b in zip(params, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
        assert torchs.state_dict()["state"][0]["step"] == after.state_dict()["state"][0]["step"]
    assert stepped


def test_closures_schedulers_scalers_hooks_and_pickles(stepped: list[int]) -> None:
    def run(optimizer: type[torch.optim.Optimizer]) -> tuple[list[nn.Parameter], list[str], list[float]]:
        params, heard, losses = parameters(), list[str](), list[float]()
        made: Any = optimizer(params, lr=0.1)  # type: ignore[call-arg]
        made.register_step_pre_hook(lambda *_: heard.append("before"))
        made.register_step_post_hook(lambda *_: heard.append("after"))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(made, 5)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def closure() -> Tensor:
            made.zero_grad()
            loss = loss_of(params)
            loss.backward()
            return loss

        for _ in range(2):
            losses.append(float(made.step(closure)))
            schedule.step()
        made.zero_grad()
        scaler.scale(loss_of(params)).backward()
        scaler.step(made)
        scaler.update()
        other = pickle.loads(pickle.dumps(made))
        assert type(other) is optimizer and len(other.state) == len(made.state)
        return params, heard, losses

    torch.optim.AdamW(parameters()).step()  # torch's step has its hooks round it from now on
    (want, heard_there, there), (got, heard_here, here) = run(torch.optim.AdamW), run(kw.AdamW)
    assert heard_here == heard_there and here == pytest.approx(there)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert stepped


def test_what_no_kernel_may_step_is_torchs(stepped: list[int]) -> None:
    def complex_() -> list[Tensor]:
        return [torch.randn(3, dtype=torch.complex64).requires_grad_()]

    def sparse() -> list[Tensor]:
        table = nn.Embedding(4, 2, sparse=True)
        table(torch.tensor([1])).sum().backward()
        return list(table.parameters())

    made = kw.AdamW(complex_())
    for _ in range(2):
        made.param_groups[0]["params"][0].grad = torch.ones(3, dtype=torch.complex64)
        made.step()
    assert not stepped
    with pytest.raises(RuntimeError, match="sparse"):
        kw.AdamW(sparse()).step()
    assert kw.AdamW(parameters()).step() is None  # no gradient anywhere


def test_where_torchs_is_taken_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question while the groups look the same, however many steps."""
    from kernelworks.nn import optim

    asked: list[int] = []

    def chosen(step: int, lists: Any, named: Any) -> bool:
        asked.append(step)
        return False

    monkeypatch.setattr(optim, "_chosen", chosen)
    train(kw.AdamW, {}, steps=9)
    assert len(asked) == 2


@pytest.mark.usefixtures("quick_processes")
def test_autotuning_a_training_step_benchmarks_the_optimizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "build").symlink_to(environment.cache_dir("build"))  # what is compiled there is compiled
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    params = parameters()
    optimizer = kw.AdamW(params)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(params).backward()
        optimizer.step()

    assert [call.op for call in kw.autotune(step).calls] == ["adamw_"]


def test_signatures() -> None:
    ours: Callable[..., Any] = kw.AdamW
    assert inspect.signature(ours) == inspect.signature(torch.optim.AdamW)
