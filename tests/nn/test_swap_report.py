"""What a swap says of itself is what will happen: the kernel that runs, or why torch's own runs and what to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import kernelworks as kw
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS
from kernelworks.nn import expected_kernels
from kernelworks.nn.swap import swap


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.ReLU())


@pytest.fixture
def nothing_verified(monkeypatch) -> None:
    monkeypatch.setattr(certificates, "find_certificates", lambda *args: [])
    monkeypatch.setattr(certificates, "transferable_certificate", lambda *args: None)


@pytest.fixture
def everything_verified(monkeypatch) -> None:
    monkeypatch.setattr(certificates, "invalid_reason", lambda *args: None)


def test_if_nothing_is_verified_nothing_is_replaced(nothing_verified) -> None:
    with swap(model(), verbose=False) as swapped:
        first, *rest = swapped.lines()
        assert first == "replaced 0 of 4: the model runs as before"
        text = "\n".join(rest)
        assert text.count("kernelworks verify --missing") == 4 and "linear -> linear (torch's own" in text
        assert all(not o.has_our_kernel for of in swapped.outlooks() for o in of)


def test_the_kernel_that_runs_is_named(everything_verified) -> None:
    with swap(model(), verbose=False) as swapped:
        first, *rest = swapped.lines()
        for (of,), (name,) in zip(swapped.outlooks(), (r.ops for r in swapped.replaced), strict=True):
            assert of.op == name and of.has_our_kernel == (of.kernels != ("torch",))
            assert set(of.kernels) <= {kernel.name for kernel in OPS[name].kernels}
        ours = sum(of.has_our_kernel for (of,) in swapped.outlooks())
        assert first.startswith(f"replaced {ours} of 4:")
        assert all(str(of) in "\n".join(rest) for (of,) in swapped.outlooks())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_kernel_that_explain_names(dtype) -> None:
    """Of one of the sizes that the op's bench times, both ask the same dispatcher."""
    for name in ("linear", "gelu", "softmax", "rms_norm"):
        op, kernels = OPS[name], set()
        for case in op.contract.bench_cases:
            if dtype in case.dtypes:
                request = expected_kernels._request(op, case, dtype, "cpu")
                made = [
                    torch.empty_strided(a.shape, a.stride, dtype=a.dtype) if hasattr(a, "stride") else a
                    for a in request.args.values()
                ]
                named = dict(zip(request.args, made, strict=True))
                kernels.add(kw.explain(name, **{n: v for n, v in named.items() if v is not None}).kernel)
        assert set(expected_kernels.outlook(name, dtype, "cpu").kernels) == kernels


def test_dtype_and_device_are_the_models_own(everything_verified) -> None:
    with swap(model(), verbose=False) as swapped:
        swapped.model.double()
        assert swapped.lines()[0].startswith("replaced 0 of 4")
        assert "float64 has no kernel of ours" in str(swapped)
        swapped.model.float()
        assert "float64" not in str(swapped)


def test_nothing_to_replace() -> None:
    class Own(nn.Module):
        """Calls no function that an op could ever stand for."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with swap(nn.Sequential(Own()), verbose=False) as swapped:
        assert swapped.lines()[0] == "replaced 0 of 1: the model runs as before"


@pytest.mark.usefixtures("quick_processes")
def test_the_command_says_the_same(tmp_path) -> None:
    (tmp_path / "made.py").write_text("from torch import nn\ndef model():\n    return nn.Linear(8, 8).double()\n")
    run = [sys.executable, "-m", "kernelworks", "swap", f"{tmp_path / 'made.py'}:model"]
    text = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert "replaced 0 of 1" in text and "float64" in text
    shown = json.loads(subprocess.run([*run, "--json"], capture_output=True, text=True, check=True).stdout)
    assert shown["replaced"][0]["rows"] == [["torch"]]
