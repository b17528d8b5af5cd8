"""nn.LSTM as a pattern of a module: what a swap puts in its place, what stays torch's, and what goes on working."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from eligible import KERNELS, only
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from kernelworks.diagnose.forecast.swapped_kernel import swap_call
from kernelworks.dispatch.hooks import watch_calls
from kernelworks.nn.swap import swap
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.timeline import record

STEPS, B, INPUTS, H = 6, 3, 5, 18
CASES: dict[str, dict[str, Any]] = {
    "one layer": {},
    "batch first": {"batch_first": True},
    "three layers": {"num_layers": 3},
    "both directions": {"bidirectional": True},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"num_layers": 2, "bias": False},
    "dropout": {"num_layers": 2, "dropout": 0.5},
}


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    torch.manual_seed(0)
    with only(KERNELS[-1]):
        yield


def calls_of(module: nn.Module, *args: Any, **named: Any) -> tuple[set[str], Any]:
    """The ops that a call reaches, and what it returns."""
    seen: set[str] = set()
    with torch.no_grad(), watch_calls(lambda op, *rest: seen.add(op.name)):
        made = module(*args, **named)
    return seen, made


def states(module: nn.LSTM, batch: int = B) -> tuple[Tensor, Tensor]:
    count = module.num_layers * (1 + module.bidirectional)
    return torch.randn(count, batch, H), torch.randn(count, batch, H)


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want)
    assert got[0].stride() == want[0].stride() or got[0].is_contiguous()


@pytest.mark.parametrize("name", CASES)
def test_a_network_is_taken_apart_into_layers_and_directions(name: str) -> None:
    module = nn.LSTM(INPUTS, H, **CASES[name]).eval()
    x, hx = torch.randn(STEPS, B, INPUTS), states(module)
    if module.batch_first:
        x = x.transpose(0, 1)
    with torch.no_grad():
        want, with_states, alone = module(x), module(x, hx), module(x[:, 0], tuple(s[:, 0] for s in hx))
    swapped = swap(module, verbose=False)
    assert [(r.type, r.kind, r.ops) for r in swapped.replaced] == [("LSTM", "recurrent network", ("lstm",))]
    seen, got = calls_of(module, x)
    assert seen == {"lstm"}
    close(got, want)
    close(calls_of(module, x, hx)[1], with_states)
    close(calls_of(module, x[:, 0], tuple(s[:, 0] for s in hx))[1], alone)
    swapped.undo()
    with torch.no_grad():
        assert torch.equal(module(x)[0], want[0]) and "forward" not in vars(module)


@pytest.mark.parametrize("name", CASES)
def test_so_is_a_gru(name: str) -> None:
    module = nn.GRU(INPUTS, H, **CASES[name]).eval()
    x, hx = torch.randn(STEPS, B, INPUTS), torch.randn(module.num_layers * (1 + module.bidirectional), B, H)
    if module.batch_first:
        x = x.transpose(0, 1)
    with torch.no_grad():
        want, with_states = module(x), module(x, hx)
    swapped = swap(module, verbose=False)
    assert [(r.type, r.ops) for r in swapped.replaced] == [("GRU", ("gru",))]
    seen, got = calls_of(module, x)
    assert seen == {"gru"}
    close(got, want)
    close(calls_of(module, x, hx)[1], with_states)
    swapped.undo()
    torchs_alone(module.train(), pack_padded_sequence(torch.randn(STEPS, B, INPUTS), torch.tensor([6, 4, 1])))


def torchs_alone(module: nn.RNNBase, x: Any, hx: Any = None) -> None:
    """The same bits, by no op of ours."""
    with torch.no_grad():
        torch.manual_seed(1)
        try:
            want = module(x, hx)
        except RuntimeError as error:  # of torch's own library, on a processor for which it has no such kernel
            swap(module, verbose=False)
            with pytest.raises(RuntimeError, match=re.escape(str(error)[:60])):
                module(x, hx)
            return
        swap(module, verbose=False)
        torch.manual_seed(1)
        seen, got = calls_of(module, x, hx)
    assert seen == set()
    for ours, theirs in zip((got[0], *got[1]), (want[0], *want[1]), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_what_an_op_cannot_say_is_torchs() -> None:
    x = torch.randn(STEPS, B, INPUTS)
    torchs_alone(nn.LSTM(INPUTS, H), pack_padded_sequence(x, torch.tensor([6, 4, 1])))
    torchs_alone(nn.LSTM(INPUTS, H, proj_size=4), x)
    torchs_alone(nn.LSTM(INPUTS, H, num_layers=2, dropout=0.5).train(), x)
    torchs_alone(nn.LSTM(INPUTS, H).double(), x.double())
    with torch.autocast("cpu", torch.bfloat16):
        torchs_alone(nn.LSTM(INPUTS, H), x)


def test_gradients_and_errors_are_torchs() -> None:
    module, x = nn.LSTM(INPUTS, H, num_layers=2), torch.randn(STEPS, B, INPUTS)
    module(x)[0].sum().backward()
    want = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    errors = []
    wrong = (torch.randn(STEPS, B, INPUTS + 1), torch.randn(STEPS), torch.randn(0, B, INPUTS))
    for given in wrong:
        with pytest.raises((RuntimeError, ValueError)) as found:
            module(given)
        errors.append(str(found.value))
    swap(module, verbose=False)
    module.zero_grad()
    module(x)[0].sum().backward()
    got = [p.grad for p in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True) if a is not None)
    for given, text in zip(wrong, errors, strict=True):
        with torch.no_grad(), pytest.raises((RuntimeError, ValueError)) as found:
            module(given)
        assert str(found.value) == text


def test_weights_that_change_are_seen() -> None:
    module, other, x = nn.LSTM(INPUTS, H), nn.LSTM(INPUTS, H), torch.randn(STEPS, B, INPUTS)
    swap(module, verbose=False)
    calls_of(module, x)

    def same() -> None:
        with torch.no_grad():
            want = other(x)
        seen, got = calls_of(module, x)
        assert seen == {"lstm"}
        close(got, want)

    module.load_state_dict(other.state_dict())
    same()
    with torch.no_grad():
        for each in (module, other):
            each.weight_hh_l0.mul_(0.5)
            each.weight_ih_l0 = nn.Parameter(each.weight_ih_l0 * 2)
    same()
    module.load_state_dict({k: v.clone() + 0.25 for k, v in other.state_dict().items()}, assign=True)
    other.load_state_dict(module.state_dict())
    same()
    module.flatten_parameters()
    same()
    for each in (module, other):
        each.to(torch.bfloat16)
    got, want = calls_of(module, x.bfloat16())[1], other(x.bfloat16())
    assert got[0].dtype is torch.bfloat16
    torch.testing.assert_close(got[0], want[0], rtol=2e-2, atol=2e-2)


def test_copies_and_files_hold_torchs_module() -> None:
    module, x = nn.LSTM(INPUTS, H), torch.randn(STEPS, B, INPUTS)
    names = list(module.state_dict())
    swap(module, verbose=False)
    assert list(module.state_dict()) == names
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert "forward" not in vars(again)
        seen, got = calls_of(again, x)
        assert seen == set()
        close(got, calls_of(module, x)[1])


def test_what_a_user_has_put_there_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.LSTM):
        def forward(self, input: Tensor, hx: Any = None) -> Any:
            return "theirs"

    assert swap(Own(INPUTS, H), verbose=False).replaced == ()
    module, x = nn.LSTM(INPUTS, H), torch.randn(STEPS, B, INPUTS)
    swap(module, verbose=False)
    monkeypatch.setattr(torch._VF, "lstm", lambda *args: (x, x, x), raising=False)
    seen, got = calls_of(module, x)
    assert seen == set() and got[0] is x
    left = swap(nn.LSTM(INPUTS, H), verbose=False).left
    assert [item.reason for item in left] == ["torch.lstm was replaced by somebody else"]


def test_hooks_see_what_they_saw() -> None:
    model, x = nn.Sequential(nn.LSTM(INPUTS, H)), torch.randn(STEPS, B, INPUTS)
    shapes = []
    model[0].register_forward_hook(lambda module, args, output: shapes.append(tuple(output[1][0].shape)))
    swap(model, verbose=False)
    assert calls_of(model, x)[0] == {"lstm"} and shapes == [(1, B, H)]


def test_diagnose_knows_the_call_of_one_layer() -> None:
    def found(module: nn.LSTM, x: Tensor, then: Any = lambda made: None) -> list[Any]:
        calls = record(lambda: then(module(x)[0]), survey=Survey()).calls
        return [swap_call(call, 1) for call in calls if call.name == "aten::lstm"]

    x = torch.randn(STEPS, B, INPUTS)
    with torch.no_grad():
        (one,) = found(nn.LSTM(INPUTS, H, batch_first=True), x.transpose(0, 1))
        assert one is not None and one.kernel == f"kw.lstm: {KERNELS[-1]}"
        assert one.request.args["x"].shape == (STEPS, B, INPUTS)
        assert one.request.args["weight_hh"].shape == (4 * H, H) and one.request.args["reverse"] is False
        assert found(nn.LSTM(INPUTS, H, num_layers=2), x) == [None]
    assert found(nn.LSTM(INPUTS, H), x, lambda made: made.sum().backward()) == [None]
