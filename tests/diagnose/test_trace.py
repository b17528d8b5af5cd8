"""Calls are found with their places, and two passes of one program are put together."""

from __future__ import annotations

import dataclasses
import pickle

import torch
from torch import Tensor, nn

from kernelworks.profile.call_sites import Survey, fold
from kernelworks.profile.cost.shapes import clusters
from kernelworks.profile.recording import record
from kernelworks.profile.trace import Call, Trace, join


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.up(x)).sum(-1, keepdim=True) * x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


MODEL, X = Model().eval(), torch.randn(4, 8)


def test_places() -> None:
    with torch.no_grad():
        calls = record(lambda: MODEL(X), survey=Survey()).calls
    found = {(c.name, c.place.module) for c in calls}
    assert ("aten::linear", "Model.layers.*.up") in found
    assert ("aten::relu", "Model.layers.*") in found
    assert all(c.place.source.startswith("test_trace.py:") for c in calls)
    assert [c.place.path for c in calls if c.name == "aten::relu"] == ["Model.layers.0", "Model.layers.1"]


def test_backward_has_the_place_of_the_forward() -> None:
    calls = record(lambda: MODEL(X).sum().backward(), survey=Survey()).calls
    products = [c for c in calls if c.backward and c.name == "aten::mm"]
    assert products and {c.place.module for c in products} == {"Model.layers.*.up"}


def test_survey_knows_weights_and_leaves_nothing_behind() -> None:
    survey = Survey()
    with torch.no_grad():
        record(lambda: MODEL(X), survey=survey)
    assert survey.persistent[MODEL.layers[0].up.weight.untyped_storage().data_ptr()] == 8 * 16 * 4
    assert not torch.overrides._get_current_function_mode_stack()
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_a_survey_holds_nothing_of_the_profilers() -> None:
    with torch.no_grad():
        trace = record(lambda: MODEL(X), survey=Survey())
    trace.output = None
    assert pickle.loads(pickle.dumps(trace)).calls == trace.calls, "which records of the profiler would not let be done"
    first, second = (c for c in trace.calls if c.name == "aten::linear")
    assert first.dtypes[:2] == [torch.float32] * 2 and first.shapes is second.shapes, (
        "one list for calls that are alike"
    )
    (product,) = (c for c in first.everything if c.name == "aten::addmm")
    weight = MODEL.layers[0].up.weight.untyped_storage().data_ptr()
    assert product.shapes[2] == [8, 16] and product.pointers[2] == weight, "what the ops below were given is read too"


def test_join_puts_shapes_to_times() -> None:
    with torch.no_grad():
        timed, survey = record(lambda: MODEL(X)), record(lambda: MODEL(X), survey=Survey())
    joined = join(timed, survey)
    assert [c.name for c in joined] == [c.name for c in timed.calls]
    assert [(c.start, c.end) for c in joined] == [(c.start, c.end) for c in timed.calls]
    assert joined[0].shapes[:2] == [[4, 8], [16, 8]]


def test_join_of_different_runs_keeps_every_timed_call() -> None:
    a, b = Call("aten::a", 0, 1, dtypes=[torch.float32], shapes=[[3]]), Call("aten::b", 1, 2)
    timed = Trace(0, 9, [dataclasses.replace(a), dataclasses.replace(a), dataclasses.replace(b)], 3, 0, None)
    joined = join(timed, Trace(0, 9, [a], 1, 0, None))
    assert [c.name for c in joined] == ["aten::a", "aten::a", "aten::b"]
    assert [c.shapes for c in joined] == [[[3]], [[3]], []]


def test_freed_blocks_are_charged_to_the_next_call() -> None:
    def run() -> None:
        big = torch.ones(1 << 20)
        del big
        torch.relu(X)

    calls = record(run, survey=Survey()).calls
    assert [c.freed for c in calls if c.name == "aten::relu"] == [4 << 20]


def test_program_that_raises() -> None:
    def run() -> None:
        raise KeyError("mine")

    try:
        record(run, survey=Survey())
    except KeyError as error:
        assert error.args == ("mine",)
    else:
        raise AssertionError("the program's exception was swallowed")
    assert not torch.autograd.profiler._is_profiler_enabled


def test_fold() -> None:
    assert fold("Model.layers.12.mlp.0") == "Model.layers.*.mlp.*"
    assert fold("Model.conv1d.x2") == "Model.conv1d.x2"


def test_clusters_join_sizes_that_differ_little() -> None:
    signatures = [(((1, 8, n, 64), "bfloat16"),) for n in (513, 514, 515, 4096)]
    assert clusters(signatures) == [("bf16 1x8x513..515x64", [0, 1, 2]), ("bf16 1x8x4096x64", [3])]
