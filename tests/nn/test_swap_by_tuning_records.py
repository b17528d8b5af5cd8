"""A swap puts in place what a tuning record says may be faster here; what it leaves runs as if nothing were swapped."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from made_tuning_records import KERNEL, add_tuning_record, no_tuning_records
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import kernelworks as kw
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.plans import generation
from kernelworks.dispatch.tuning_records import RaceResult
from kernelworks.machine import place_of
from kernelworks.measure.autotune import candidates, session
from kernelworks.measure.clock.duel import Duel
from kernelworks.nn import expected_kernels


@pytest.fixture(autouse=True)
def apart(tmp_path: Path) -> Iterator[None]:
    with no_tuning_records(tmp_path):
        yield


X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


def of_linear(rows: int, n: int, k: int, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    return torch.zeros(rows, k, dtype=dtype), torch.zeros(n, k, dtype=dtype), torch.zeros(n, dtype=dtype)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 64)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.down(self.norm(self.act(self.up(x)))), dim=-1)


# what was benchmarked -> the paths that a swap then replaces
BENCHMARKED: dict[str, tuple[Callable[[], None], set[str]]] = {
    "nothing": (lambda: None, set()),
    "gelu": (lambda: add_tuning_record("gelu", torch.zeros(4, 256), "none"), {"act"}),
    "gelu, and torch was quicker": (lambda: add_tuning_record("gelu", torch.zeros(4, 256), "none", ratio=0.9), set()),
    "gelu, within what two runs differ by": (
        lambda: add_tuning_record("gelu", torch.zeros(4, 256), "none", ratio=1.02), set()
    ),
    "gelu in bfloat16": (lambda: add_tuning_record("gelu", torch.zeros(4, 256).bfloat16(), "none"), set()),
    "gelu of a training step": (lambda: add_tuning_record("gelu", torch.zeros(4, 256), "none", wanted=("x",)), {"act"}),
    "a product of these sizes": (lambda: add_tuning_record("linear", *of_linear(4, 256, 64)), {"up"}),
    "a product of other rows": (lambda: add_tuning_record("linear", *of_linear(512, 256, 64)), {"up"}),
    "a product of other sizes": (lambda: add_tuning_record("linear", *of_linear(4, 4096, 64)), set()),
    "a norm": (
        lambda: add_tuning_record("layer_norm", torch.zeros(4, 256), torch.ones(256), torch.zeros(256), 1e-5), {"norm"}
    ),
    "softmax, which is called by its name": (lambda: add_tuning_record("softmax", torch.zeros(4, 64), -1), {""}),
}  # fmt: skip


@pytest.mark.parametrize("name", BENCHMARKED)
def test_a_swap_leaves_what_no_tuning_record_speaks_for(name: str) -> None:
    benchmark, replaced = BENCHMARKED[name]
    benchmark()
    model = Net()
    plain = {path: dict(vars(module)) for path, module in model.named_modules()}
    want = model(X)
    with kw.swap(model, verbose=False) as swapped:
        assert {r.path for r in swapped.replaced} == replaced
        assert all(o.kernels and o.has_our_kernel for of in swapped.outlooks() for o in of)
        for path, module in model.named_modules():
            assert ("forward" in vars(module)) == (path in replaced)
        left = {item.path: item.reason for item in swapped.left}
        assert left.keys() == plain.keys() - replaced
        for path in {"up", "norm", "down", "act"} - replaced:
            assert left[path] in (expected_kernels.NOT_TIMED_REASON, expected_kernels.TORCH_WON_REASON)
        torch.testing.assert_close(model(X), want)
        first = swapped.lines()[0]
        assert first.startswith(f"replaced {len(replaced)} of 5:") and ("the model runs as before" in first) != bool(
            replaced
        )
    assert {path: dict(vars(module)) for path, module in model.named_modules()} == plain


def test_a_replaced_module_takes_torchs_function_where_a_call_was_not_won(monkeypatch: pytest.MonkeyPatch) -> None:
    add_tuning_record("gelu", torch.zeros(4, 256), "none")
    add_tuning_record("gelu", torch.zeros(300, 256), "none", ratio=0.8)
    taken = []
    choose = OPS["gelu"].choice

    model = nn.GELU()
    with kw.swap(model, verbose=False):
        for rows, native in ((4, False), (300, True), (5000, True)):
            x = torch.randn(rows, 256)
            assert choose((x, "none"), None).native == native
            if native:
                assert torch.equal(model(x), F.gelu(x))
            x.requires_grad_()
            out = model(x)
            taken.append(type(out.grad_fn).__name__)
    assert taken == ["GeluBackward0"] * 3  # no tuning record of training


class WrittenNorm(nn.Module):
    """A norm in arithmetic: what torch calls by its name is another function, and not what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(64)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def test_what_was_written_runs_where_torch_is_chosen() -> None:
    add_tuning_record("rms_norm", X, torch.ones(64), 1e-5, None)
    model, more = WrittenNorm(), torch.randn(300, 64)
    with torch.no_grad():
        want = model(X), model(more)
        with kw.swap(model, verbose=False) as swapped:
            assert swapped.replaced
            torch.testing.assert_close(model(X), want[0])
            assert torch.equal(model(more), want[1])


def test_noise_and_what_holds_no_more_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    add_tuning_record("gelu", torch.zeros(4, 256), "none")
    (path,) = tuning_records._folder(place_of("cpu")).rglob("*.json")
    text = path.read_text(encoding="utf-8")
    for old, new in (
        (tuning_records.torch_version(), "2.0.0"),
        ('"spread": 0.01', '"spread": 0.5'),
        ('"gelu"', '"gelu2"'),
    ):
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        tuning_records.reread()
        swapped = kw.swap(nn.GELU(), verbose=False)
        assert not swapped.replaced
        assert swapped.left[0].reason == (
            expected_kernels.NOISY_REASON if "spread" in old else expected_kernels.NOT_TIMED_REASON
        )
    path.write_text(text, encoding="utf-8")
    tuning_records.reread()
    assert kw.swap(nn.GELU(), verbose=False).replaced
    stale = dataclasses.replace(OPS["gelu"].kernel(KERNEL), hashed=lambda kernel: "another")
    monkeypatch.setattr(OPS["gelu"], "kernels", tuple(stale if r.name == KERNEL else r for r in OPS["gelu"].kernels))
    assert not kw.swap(nn.GELU(), verbose=False).replaced


def parts(model: nn.Module) -> set[str]:
    return {path for path, module in model.named_modules() if "forward" in vars(module)}


@pytest.mark.parametrize("trained", [False, True])
def test_a_compiler_meets_what_was_chosen(trained: bool) -> None:
    """... as one graph: the op that won in it, torch's own operators for the others."""
    add_tuning_record("gelu", torch.zeros(4, 256), "none")
    add_tuning_record("gelu", torch.zeros(4, 256), "none", wanted=("x",))
    add_tuning_record("linear", *of_linear(4, 256, 64), ratio=0.8)
    add_tuning_record("layer_norm", torch.zeros(9, 256), torch.ones(256), torch.zeros(256), 1e-5, ratio=5.0)
    model, met = Net(), set[str]()

    def backend(graph: torch.fx.GraphModule, args: Any) -> Any:
        met.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    with torch.set_grad_enabled(trained):
        want = model(X)
        with kw.swap(model, verbose=False) as swapped:
            assert {r.path for r in swapped.replaced} == {"act", "norm"}
            torch._dynamo.reset()
            compiled = torch.compile(model, fullgraph=True, backend=aot_autograd(fw_compiler=backend))
            torch.testing.assert_close(compiled(X), want)
    assert any("kernelworks.gelu" in name for name in met) and any("aten.addmm" in name for name in met)
    assert not any("kernelworks.linear" in name or "kernelworks.layer_norm" in name for name in met)


# ---------------------------------------------------------------- decoders


def decoder() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


def of_attention(keys: int) -> tuple[Any, ...]:
    q, k = torch.zeros(1, 4, 1, 8), torch.zeros(1, 2, keys, 8)
    return q, k, k, None, None, 8**-0.5, None, False, None, None


# what won -> whether attention is ours to call, and a layer runs in one piece
WON: dict[str, tuple[Callable[[], None], bool]] = {
    "nothing": (lambda: None, False),
    "torch's": (lambda: add_tuning_record("linear", *of_linear(1, 32, 32), ratio=0.9), False),
    "products of one row": (
        lambda: add_tuning_record("linear", torch.zeros(1, 1, 32), torch.zeros(32, 32), None),
        True,
    ),
    "attention of one query": (lambda: add_tuning_record("attention", *of_attention(20)), True),
    "the norm": (lambda: add_tuning_record("rms_norm", torch.zeros(1, 1, 32), torch.ones(32), 1e-6, None), True),
    "another dtype": (lambda: add_tuning_record("linear", *of_linear(1, 32, 32, torch.bfloat16)), False),
}


@pytest.mark.parametrize("name", WON)
@torch.no_grad()
def test_a_decoder_runs_in_one_piece_where_a_part_of_it_won(name: str) -> None:
    benchmark, ours = WON[name]
    model, ids, mode = decoder(), torch.arange(1, 17)[None], "_attn_implementation"
    want = model.generate(ids, max_new_tokens=12, do_sample=False, output_logits=True, return_dict_in_generate=True)
    benchmark()
    with kw.swap(model, verbose=False) as swapped:
        assert (getattr(model.config, mode) == "kernelworks") == ours == bool(swapped.replaced)
        assert ("_kernelworks_parts" in vars(model.model.layers[0])) == ours
        assert ours or not parts(model)
        got = model.generate(ids, max_new_tokens=12, do_sample=False, output_logits=True, return_dict_in_generate=True)
        for a, b in zip(got.logits, want.logits, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        if ours:  # what is timed meanwhile counts from the next step on
            add_tuning_record("linear", torch.zeros(1, 1, 32), torch.zeros(32, 32), None, ratio=0.5)
            again = model.generate(ids, max_new_tokens=2, do_sample=False)
            assert torch.equal(again, got.sequences[:, :18])
            assert all(any(generation() in key for key in m._kernelworks_parts.bound) for m in model.model.layers)
    assert getattr(model.config, mode) == "sdpa"


# ---------------------------------------------------------------- autotune


@pytest.fixture
def races_end(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Every race ends as this table says of its op, 0.5 where it says nothing."""
    ends: dict[str, float] = {}
    running: list[str] = []
    autotune_call = session.Session._autotune_call

    def of(self: session.Session, op: Op, *others: Any) -> None:
        running.append(op.name)
        autotune_call(self, op, *others)

    def duel(ours: Callable[[], Any], torchs: Callable[[], Any], *others: Any, **named: Any) -> Duel:
        ours(), torchs()
        ratio = ends.get(running[-1], 0.5)
        return Duel(RaceResult(10.0, 10.0 * ratio, (ratio, ratio), 0.01), 6)

    monkeypatch.setattr(session.Session, "_autotune_call", of)
    monkeypatch.setattr(candidates, "duel", duel)
    monkeypatch.setattr(
        candidates, "fastest_variant", lambda variants, *how: next(n for n, _ in variants if KERNEL in n)
    )
    return ends


def test_autotune_measures_a_call_and_swaps_what_won(races_end: dict[str, float]) -> None:
    races_end |= {"gelu": 1.5, "layer_norm": 1.2}
    model, calls = Net(), []
    want = model(X)
    with kw.swap(model, autotune=lambda: calls.append(model(X)), verbose=False) as swapped:
        assert len(calls) == 1
        torch.testing.assert_close(calls[0], want)
        assert parts(model) == {"act", "norm"} == {r.path for r in swapped.replaced}
        assert {c.op: c.taken != "torch" for c in swapped.autotune_result.calls} == {
            "linear": False, "gelu": True, "layer_norm": True, "softmax": False
        }  # fmt: skip
        assert "of ours, the others torch" in swapped.lines()[-1]
        torch.testing.assert_close(model(X), want)
    assert not parts(model)
    with kw.swap(model, verbose=False) as known:  # what was measured is known to every later swap
        assert {r.path for r in known.replaced} == {"act", "norm"}


def test_autotune_of_a_training_step(races_end: dict[str, float]) -> None:
    races_end["linear"] = 1.4
    model = Net()
    with kw.swap(model, autotune=lambda: model(X).square().sum().backward(), verbose=False) as swapped:
        assert parts(model) == {"up", "down"}
        assert {c.what for c in swapped.autotune_result.calls} == {"forward", "forward + backward", "backward"}
        assert type(model.up(X).grad_fn).__name__ != "AddmmBackward0"
    assert all(p.grad is not None for p in model.parameters())


def test_nothing_is_changed_where_nothing_wins(races_end: dict[str, float]) -> None:
    model = Net()
    with kw.swap(model, autotune=lambda: model(X), verbose=False) as swapped:
        assert not swapped.replaced and not parts(model)
        assert swapped.lines()[0] == "replaced 0 of 5: the model runs as before"
        assert {item.reason for item in swapped.left} == {expected_kernels.TORCH_WON_REASON}


def test_autotune_by_the_next_call(races_end: dict[str, float]) -> None:
    races_end["gelu"] = 1.5
    model = Net()
    want = model(X)
    with kw.swap(model, autotune=True, verbose=False) as swapped:
        assert swapped.waiting and "the model's next call measures" in str(swapped)
        assert inspect.signature(model.forward) == inspect.signature(Net().forward)
        torch.testing.assert_close(model(X), want)  # the call that is measured
        assert not swapped.waiting and parts(model) == {"act"} and swapped.autotune_result.calls
        torch.testing.assert_close(model(X), want)
    assert not parts(model) and torch.equal(model(X), want)


def test_a_call_that_fails_is_measured_the_next_time(races_end: dict[str, float]) -> None:
    races_end["gelu"] = 1.5
    model = Net()
    with kw.swap(model, autotune=True, verbose=False) as swapped:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(torch.zeros(4, 63))
        assert swapped.waiting
        model(X)
        assert not swapped.waiting and parts(model) == {"act"}
    with pytest.raises(ZeroDivisionError):
        kw.swap(model, autotune=lambda: 1 // 0, verbose=False)
    assert not parts(model)


def test_what_is_undone_or_copied_while_it_waits_measures_nothing(races_end: dict[str, float]) -> None:
    races_end["gelu"] = 1.5
    model = Net()
    swapped = kw.swap(model, autotune=True, verbose=False)
    other = copy.deepcopy(model)
    want = other(X)
    assert swapped.waiting and not parts(other)
    swapped.undo()
    assert not parts(model) and torch.equal(model(X), want) and swapped.autotune_result is None


@pytest.mark.parametrize("autotune", ["now", 3, None])
def test_autotune_is_a_function_or_a_bool(autotune: Any) -> None:
    with pytest.raises(TypeError, match="autotune must be True, False or a function"):
        kw.swap(Net(), autotune=autotune, verbose=False)
