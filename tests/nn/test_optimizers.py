"""Optimizers of ours stand where torch's stood: same arguments, groups, state, hooks, pickles, results."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.machine import environment
from kernelworks.nn import optim

Asks = dict[str, Any]
Kind = type[torch.optim.Optimizer]
ADAMW: tuple[Asks, ...] = (
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
SGD: tuple[Asks, ...] = (
    {},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.2, "maximize": True},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2},
    {"weight_decay": 0.1},
    {"momentum": 0.9, "foreach": True},
    {"momentum": 0.9, "fused": True},
    {"foreach": False},
    {"lr": torch.tensor(0.01)},
    {"lr": 1, "momentum": 1},
)
ADAM: tuple[Asks, ...] = (
    {},
    {"weight_decay": 0.2, "maximize": True},
    {"weight_decay": 0.1, "decoupled_weight_decay": True},
)
RMSPROP: tuple[Asks, ...] = ({}, {"weight_decay": 0.2, "alpha": 0.9}, {"momentum": 0.9}, {"centered": True})
ADAGRAD: tuple[Asks, ...] = (
    {},
    {"lr_decay": 0.1, "weight_decay": 0.2, "initial_accumulator_value": 0.1},
    {"fused": True},
)
ADADELTA: tuple[Asks, ...] = ({}, {"rho": 0.8, "weight_decay": 0.2, "maximize": True}, {"foreach": True})
KINDS: dict[Any, tuple[Asks, ...]] = {
    kw.AdamW: ADAMW, kw.SGD: SGD, kw.Adam: ADAM, kw.RMSprop: RMSPROP, kw.Adagrad: ADAGRAD, kw.Adadelta: ADADELTA,
}  # fmt: skip
TORCHS = {kind: getattr(torch.optim, kind.__name__) for kind in KINDS}
CASES = [(kind, asked) for kind, cases in KINDS.items() for asked in cases]
USUAL: dict[Any, Asks] = {kind: {} for kind in KINDS} | {kw.SGD: {"lr": 0.1, "momentum": 0.9}}
OURS = {
    "lr", "betas", "eps", "weight_decay", "maximize", "momentum", "dampening", "nesterov", "alpha", "rho", "lr_decay",
    "initial_accumulator_value",
}  # fmt: skip


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes: tuple[tuple[int, ...], ...] = ((5, 4), (7,), (), (2, 3, 3))
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def loss_of(params: list[nn.Parameter]) -> Tensor:
    return sum((p * p.detach().cos()).sum() for p in params)  # type: ignore[return-value]


def train(
    optimizer: Kind, asked: Asks, steps: int = 4, dtype: torch.dtype = torch.float32
) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    params = parameters(dtype)
    groups = [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}]
    made = optimizer(groups, **asked)
    for step in range(steps):
        made.zero_grad()
        loss_of(params if step else params[:3]).backward()  # one parameter begins a step later
        made.step()
    return params, made


def alike(got: list[Any], want: list[Any]) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each call of an op stepped, with its first kernel that may run taken."""
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "listed")
    seen: list[int] = []

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (seen.append(len(args[0])), call(*args))

    monkeypatch.setattr(optim, "_chosen", lambda op, args: True)
    for kind in TORCHS:
        monkeypatch.setattr(kind.OP, "call", watched(kind.OP.call))
    return seen


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.filterwarnings("ignore:.*capturable.*")
def test_it_steps_as_torchs(case: int, stepped: list[int]) -> None:
    kind, asked = CASES[case]
    try:
        want, torchs = train(TORCHS[kind], asked)
    except Exception as error:
        with pytest.raises(type(error)):
            train(kind, asked)
        return
    got, ours = train(kind, asked)
    alike(got, want)
    served = asked.keys() <= OURS and not (kind is kw.RMSprop and "momentum" in asked)
    assert bool(stepped) is (served and not isinstance(asked.get("lr"), Tensor))
    one, other = ours.state_dict(), torchs.state_dict()
    assert one["param_groups"] == other["param_groups"] and one["state"].keys() == other["state"].keys()
    for key, state in other["state"].items():
        assert one["state"][key].keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(one["state"][key][name], value, rtol=1e-5, atol=1e-7)
            assert value is None or one["state"][key][name].device == value.device


@pytest.mark.parametrize("kind", TORCHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_of_other_dtypes(kind: Any, dtype: torch.dtype) -> None:
    (want, _), (got, _) = (train(k, USUAL[kind], dtype=dtype) for k in (TORCHS[kind], kind))
    if dtype is torch.float64:
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
        return
    exact, _ = train(TORCHS[kind], USUAL[kind], dtype=torch.float64)
    for a, b, true in zip(got, want, exact, strict=True):  # torch rounds each term of a step, ours its result
        ours, theirs = ((t.double() - true).abs().max().item() for t in (a, b))
        assert ours <= 2 * theirs + 2.0**-8 * true.abs().max().item()


@pytest.mark.parametrize("kind", TORCHS)
def test_state_goes_both_ways(kind: Any, stepped: list[int]) -> None:
    want, torchs = train(TORCHS[kind], USUAL[kind], steps=8)
    for first, second in ((TORCHS[kind], kind), (kind, TORCHS[kind])):
        params, made = train(first, USUAL[kind], steps=4)
        groups = [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}]
        after = second(groups, **USUAL[kind])
        after.load_state_dict(pickle.loads(pickle.dumps(made.state_dict())))
        for _ in range(4):
            after.zero_grad()
            loss_of(params).backward()
            after.step()
        alike(params, want)
        state, its = torchs.state_dict()["state"][0], after.state_dict()["state"][0]
        assert state.get("step") == its.get("step") and state.keys() == its.keys()
    assert stepped


@pytest.mark.parametrize("kind", TORCHS)
def test_closures_schedulers_scalers_hooks_and_pickles(kind: Any, stepped: list[int]) -> None:
    def run(optimizer: Kind) -> tuple[list[nn.Parameter], list[str], list[float]]:
        params, heard, losses = parameters(), list[str](), list[float]()
        made: Any = optimizer(params, **USUAL[kind])
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
            losses.append(float(made.step(closure).detach()))
            schedule.step()
        made.zero_grad()
        scaler.scale(loss_of(params)).backward()
        scaler.step(made)
        scaler.update()
        other = pickle.loads(pickle.dumps(made))
        assert type(other) is optimizer and len(other.state) == len(made.state)
        return params, heard, losses

    TORCHS[kind](parameters()).step()  # torch's step has its hooks round it from now on
    (want, heard_there, there), (got, heard_here, here) = run(TORCHS[kind]), run(kind)
    assert heard_here == heard_there and here == pytest.approx(there)
    alike(got, want)
    assert stepped


@pytest.mark.parametrize("kind", TORCHS)
def test_what_no_kernel_may_step_is_torchs(kind: Any, stepped: list[int]) -> None:
    def complex_() -> list[Tensor]:
        return [torch.randn(3, dtype=torch.complex64).requires_grad_()]

    def sparse() -> list[Tensor]:
        table = nn.Embedding(4, 2, sparse=True)
        table(torch.tensor([1])).sum().backward()
        return list(table.parameters())

    made = kind(complex_(), **USUAL[kind])
    for _ in range(2):
        made.param_groups[0]["params"][0].grad = torch.ones(3, dtype=torch.complex64)
        made.step()
    try:
        TORCHS[kind](sparse()).step()
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match="sparse"):
            kind(sparse()).step()
        assert "sparse" in str(error)
    else:
        kind(sparse()).step()
    assert not stepped
    assert kind(parameters()).step() is None  # no gradient anywhere


@pytest.mark.parametrize("kind", TORCHS)
def test_parameters_in_one_memory_are_torchs(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch steps one after the other, so the second sees what the first wrote. One launch does not."""
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "listed")
    ends = []
    for optimizer in (TORCHS[kind], kind):
        memory = torch.linspace(-1.0, 1.0, 24)
        params = [nn.Parameter(memory[:16]), nn.Parameter(memory[8:]), nn.Parameter(torch.ones(3))]
        made = optimizer(params, **USUAL[kind])
        for _ in range(3):
            for p in params:
                p.grad = p.detach().clone()
            made.step()
        ends.append(memory)
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", TORCHS)
def test_parameters_that_move_into_one_memory_are_torchs(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at when the kernel was chosen is looked at again at each step."""
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "listed")
    ends = []
    for optimizer in (TORCHS[kind], kind):
        params = [nn.Parameter(torch.linspace(0.0, 1.0, 8)) for _ in range(2)]
        made = optimizer(params, **USUAL[kind])
        for step in range(4):
            if step == 2:
                params[1].data = params[0].data
            for p in params:
                p.grad = p.detach().clone()
            made.step()
        ends.append(params[0].detach())
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", TORCHS)
def test_a_new_number_needs_no_new_plan(kind: Any, stepped: list[int]) -> None:
    """Schedules change the learning rate and the momentum at each step."""
    params = parameters()
    made = kind(params, **USUAL[kind])
    counts = []
    for step in range(6):
        made.param_groups[0].update(
            {"lr": 0.1 / (step + 1)} | ({"momentum": 0.9 - step / 100} if kind is kw.SGD else {})
        )
        loss_of(params).backward()
        made.step()
        counts.append(len(kind.OP.plans))
    assert counts[2:] == counts[2:3] * 4


@pytest.mark.parametrize("kind", TORCHS)
def test_where_torchs_is_taken_nothing_is_looked_at(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One question while the groups look the same, however many steps."""
    asked: list[Any] = []

    def chosen(op: Any, args: Any) -> bool:
        asked.append(op)
        return False

    monkeypatch.setattr(optim, "_chosen", chosen)
    train(kind, USUAL[kind], steps=9)
    first = 2 if kind is kw.SGD else 0  # a first step, which makes the momentum, looks otherwise
    assert len(asked) == 2 + first


@pytest.mark.usefixtures("quick_processes")
def test_autotuning_a_training_step_benchmarks_the_optimizers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "build").symlink_to(environment.cache_dir("build"))  # what is compiled there is compiled
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    params = parameters()
    optimizers = [kw.AdamW(params[:2]), kw.SGD(params[2:], momentum=0.9)]

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(params).backward()
        for optimizer in optimizers:
            optimizer.step()

    step()
    assert {call.op for call in kw.autotune(step).calls} == {"adamw_", "sgd_"}


@pytest.mark.parametrize("kind", TORCHS)
def test_signatures(kind: Any) -> None:
    assert inspect.signature(kind) == inspect.signature(TORCHS[kind])


def test_lion_steps_by_its_definition() -> None:
    params, wanted = parameters(), [p.detach().double() for p in parameters()]
    averages = [torch.zeros_like(p) for p in wanted]
    optimizer = kw.Lion([{"params": params[:2]}, {"params": params[2:], "lr": 0.03}], lr=0.01, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = optimizer.step(lambda: (loss_of(params).backward(), 7.0)[1])
        assert loss == 7.0
        for i, (p, m) in enumerate(zip(wanted, averages, strict=True)):
            rate = 0.01 if i < 2 else 0.03
            g = torch.autograd.grad((p.requires_grad_() * p.detach().cos()).sum(), p)[0]
            p.requires_grad_(False)
            p.mul_(1 - rate * 0.1).sub_(rate * (0.9 * m + 0.1 * g).sign())
            m.mul_(0.99).add_(0.01 * g)
    alike(params, [p.float() for p in wanted])
    again = kw.Lion([{"params": params[:2]}, {"params": params[2:]}])
    again.load_state_dict(optimizer.state_dict())
    alike([again.state[p]["exp_avg"] for p in params], [m.float() for m in averages])


def test_lion_steps_what_the_op_takes_not_by_its_definition() -> None:
    """One group of both, as a model of mixed dtypes has it."""
    values = torch.linspace(-1.0, 1.0, 7, dtype=torch.float64)
    params = [nn.Parameter(values.clone().to(d)) for d in (torch.float64, torch.float32)]
    optimizer = kw.Lion(params, lr=0.1, weight_decay=0.5)
    for _ in range(2):
        for p in params:
            p.grad = p.detach().cos() - 0.7
        optimizer.step()
    torch.testing.assert_close(params[0].float(), params[1], rtol=1e-5, atol=1e-6)
    assert not torch.equal(params[0], values) and optimizer.state[params[0]]["exp_avg"].dtype is torch.float64


@pytest.mark.parametrize(("asked", "named"), [({"lr": -1.0}, "lr"), ({"betas": (0.9, 1.0)}, "beta2")])
def test_lion_names_what_it_refuses(asked: Asks, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        kw.Lion(parameters(), **asked)
    sparse = nn.Parameter(torch.ones(3))
    sparse.grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        kw.Lion([sparse]).step()
