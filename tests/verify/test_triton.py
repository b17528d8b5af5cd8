"""GPU kernels where there is no GPU: kernels run in Triton's interpreter and compile for sm_90, and are not chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import forked
import pytest
import torch
from one_op import asked
from op_kernels import ALL_OPS, certified, label

from kernelworks.build import configs, kernels
from kernelworks.contract import Case, Kernel, Request, TensorSpec
from kernelworks.dispatch import certificates
from kernelworks.dispatch.choose import choose
from kernelworks.dispatch.meta_arguments import on_meta
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine.gpu_targets import GPU_TARGETS, HOPPER, GpuTarget, compiled_for
from kernelworks.verify.resources import is_declined, resources

TRITON = [(op, kernel.name) for op in ALL_OPS for kernel in op.kernels if kernel.target == "triton"]
LEFT = [pytest.mark.thorough]
GPU_KIND = "sm_90-nvidia_h200"


def _interpreted() -> list[object]:
    """All kernels that no certificate of a GPU speaks for, and one of each family. What a certificate names, the source
    and what launches it, ran on a GPU on every case; the interpreter tries a few of them, on numbers of a CPU."""
    first = [*{op.op_package.parent: op for op, _ in reversed(TRITON)}.values()]
    return [
        pytest.param(op, kernel, marks=[] if asked.every_kernel or op in first or not certified(op, kernel) else LEFT)
        for op, kernel in TRITON
    ]


# Of work (`telling_cases`) that the interpreter is granted if a certificate of a GPU speaks for this source; a call of
# attention takes it a tenth of a second. If none does: every trait once, which takes less than the other number.
INTERPRETED, EVERY_TRAIT = 24, 120
DEAR = ("gated_delta_rule", "quantized_linear")  # ops of whose cases 24 buys a few: every trait with a certificate, too
FEW = ("gru", "lstm")  # ops of whose cases four have every trait: more of them
# Cases of a device and of benchmarks that are compiled, a second or two each, where no certificate says that they were.
COMPILED = {"device_cases": 3, "bench_cases": 3}

# The worker of `interpreted`, on those cases of the op that tell most.
PICKED = """
import dataclasses, sys
from kernelworks import ops
from kernelworks.dispatch.op import OPS
from kernelworks.verify import triton_interpreter
support, work, once = sys.argv.pop(1), int(sys.argv.pop(1)), sys.argv.pop(1) == "once"
sys.path.insert(0, support)
from telling_cases import telling
op = OPS[sys.argv[1]]
op.contract = dataclasses.replace(op.contract, cases=telling(op, work, most=700, once=once))
sys.exit(triton_interpreter.main())
"""

# Bytes a thread that kernels spill where a tile or a whole kernel is more than registers hold: an upper limit, so that
# none grows unseen. All others spill nothing.
SPILLS: dict[tuple[str, str], int] = {
    # Two programs of 128 queries on a multiprocessor leave 255 registers; 112 bytes with a window, 288 with a mask.
    ("attention", "_forward"): 288,
    # 280 bytes in 16 bits, where tiles that spill 40 or 64 took 1.3 times as long; 528 in float32. 1616 and 440 at a
    # head_dim of 256, where sm90_backward_wide is there instead.
    ("attention", "_keys"): 1616,
    ("attention", "_queries"): 440,
    # The same sweeps at a head_dim of 128; of 256 for gradients of keys, where larger tiles spill 1888.
    # A head's state and its gradient in registers, some columns of both: 128 bytes with 8 warps, 296 with 16.
    ("gated_delta_rule", "_backward"): 128,
    # The same in ssd: 16 bytes of 16-bit inputs, 480 of float32 at N = 128.
    ("ssd", "_backward"): 16,
    ("varlen_attn", "_packed"): 96,
    ("varlen_attn", "_packed_keys"): 312,
    # attention's sweeps over lists, the same cuts.
    ("block_sparse_attention", "_listed"): 56,
    ("block_sparse_attention", "_listed_keys"): 344,
    ("block_sparse_attention", "_listed_queries"): 16,
    # Rows of 12000 elements and more, kept in registers so that they are read once.
    ("add_layer_norm", "_backward"): 88,
    ("layer_norm", "_backward"): 1040,
    ("layer_norm", "_forward"): 24,
    ("rms_norm", "_backward"): 640,
    ("rms_norm", "_forward"): 96,
    ("softmax", "_backward"): 32,
    ("linear", "_product"): 160,  # a plain kernel: torch's or sm90's is taken on a GPU where they are quicker
}


@pytest.mark.parametrize(("op", "kernel"), _interpreted(), ids=label)
def test_interpreted_kernels_keep_the_contract(op: Op, kernel: str, request: pytest.FixtureRequest) -> None:
    whole = f"{op.name} --kernel {kernel} --dtype float32,bfloat16 --most 700"
    if request.config.getoption("--all"):
        done = forked.python(*whole.split(), module="kernelworks.verify.triton_interpreter", TRITON_INTERPRET="1")
    else:
        few = certified(op, kernel) and op.name not in (*DEAR, *FEW)
        work = (str(INTERPRETED), "again") if few else (str(EVERY_TRAIT), "again" if op.name in FEW else "once")
        picked = (str(Path(forked.__file__).parent), *work)
        done = forked.python(*picked, *whole.split(), code=PICKED, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    tried = int(done.stdout.split(": ")[-1].split(" cases")[0])
    assert tried >= (10 if "backward" in op.kernel(kernel).passes else 5)  # a pass each


def _spread(cases: Sequence[Case], most: int) -> tuple[Case, ...]:
    """So many of them, from the first to the last."""
    return tuple(cases[i * len(cases) // most] for i in range(min(most, len(cases))))


@pytest.mark.parametrize(
    ("op", "kernel"),
    [pytest.param(op, kernel, marks=[pytest.mark.thorough] if certified(op, kernel) else []) for op, kernel in TRITON],
    ids=label,
)
def test_kernels_compile_for_sm_90_without_spills(
    op: Op, kernel: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not request.config.getoption("--all"):
        some = {name: _spread(getattr(op.contract, name), most) for name, most in COMPILED.items()}
        monkeypatch.setattr(op, "contract", dataclasses.replace(op.contract, **some))
    dtypes = op.contract.dtypes
    compiled = resources(op, kernel, dtypes=(torch.bfloat16 if torch.bfloat16 in dtypes else dtypes[0],))
    assert compiled
    for case, kernel, constants, taken in compiled:
        spilled = taken["local"] + taken["stack"]
        assert spilled <= SPILLS.get((op.name, kernel), 0), f"{case} {kernel} {constants}: {taken}"
        assert taken["shared"] <= HOPPER.shared_bytes, f"{case} {kernel} {constants}: {taken}"


@pytest.mark.thorough
@pytest.mark.parametrize("target", [t for t in GPU_TARGETS.values() if t is not HOPPER], ids=lambda t: t.name)
@pytest.mark.parametrize(("op", "kernel"), TRITON, ids=label)
def test_kernels_compile_for_other_gpus(
    op: Op, kernel: str, target: GpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not tuned for them: what spills there is slow, and right."""
    some = {name: _spread(getattr(op.contract, name), most) for name, most in COMPILED.items()}
    monkeypatch.setattr(op, "contract", dataclasses.replace(op.contract, **some))
    dtypes = op.contract.dtypes
    wanted = (torch.bfloat16 if torch.bfloat16 in dtypes else dtypes[0],)
    for case, name, constants, taken in resources(op, kernel, dtypes=wanted, target=target):
        assert taken["shared"] <= target.shared_bytes, f"{case} {name} {constants}: {taken}"


def test_a_launch_that_only_hopper_has_is_declined_elsewhere() -> None:
    """Its compiler would end the process."""
    op = OPS["attention"]

    def declines(dtype: torch.dtype, target: str) -> bool:
        q = on_meta(torch.empty(1, 2, 300, 64, dtype=dtype))
        with compiled_for(GPU_TARGETS[target]):
            return is_declined(op, "triton", "forward", [q, q, q, *[None] * 4, False, None, None])

    assert declines(torch.bfloat16, "sm_80")
    assert not declines(torch.float32, "sm_80")
    assert not declines(torch.bfloat16, "sm_90")


@pytest.mark.parametrize(("op", "kernel"), TRITON, ids=label)
def test_cpu_tensors_are_declined_with_the_reason(op: Op, kernel: str) -> None:
    request = Request(op.name, "forward", {"x": TensorSpec((2, 2), torch.float32, (2, 1), "cpu")})
    assert op.kernel(kernel).guard(request) == "runs on CUDA tensors, got cpu"


def _on_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[Op, Kernel, Request]:
    """rms_norm, its Triton kernel as it would be loaded on a GPU, and a request for one."""
    op = OPS["rms_norm"]
    monkeypatch.setattr(certificates, "kind_of", lambda device: GPU_KIND)
    x = TensorSpec((64, 1024), torch.bfloat16, (1024, 1), "cuda")
    weight = TensorSpec((1024,), torch.bfloat16, (1,), "cuda")
    request = Request("rms_norm", "forward", {"x": x, "weight": weight, "eps": 1e-6, "residual": None})
    kernel = dataclasses.replace(op.kernel("triton"), load=lambda pass_: lambda *args, out=None: None)
    monkeypatch.setattr(op, "kernels", tuple(kernel if r.name == "triton" else r for r in op.kernels))
    return op, kernel, request


def _certificate(source_hash: str) -> certificates.Certificate:
    return certificates.Certificate(
        op="rms_norm", kernel="triton", source_hash=source_hash, toolchain=kernels.triton_toolchain(), kind=GPU_KIND,
        cases=1, worst=0.5, mutants_rejected=1, date="2026-11-21",
    )  # fmt: skip


def test_a_certificate_for_this_source_makes_the_kernel_eligible(monkeypatch: pytest.MonkeyPatch) -> None:
    op, kernel, request = _on_gpu(monkeypatch)
    monkeypatch.setattr(certificates, "find_certificates", lambda *a: [_certificate(kernel.hash())])
    assert choose(op, request).kernel.name == "triton"


def test_a_stale_certificate_makes_the_kernel_ineligible(monkeypatch: pytest.MonkeyPatch) -> None:
    op, kernel, request = _on_gpu(monkeypatch)
    verified = kernel.hash()
    stale = dataclasses.replace(kernel, load=lambda pass_: kernel.load(pass_))
    assert stale.hash() not in ("", verified)
    monkeypatch.setattr(op, "kernels", tuple(stale if r.name == "triton" else r for r in op.kernels))
    monkeypatch.setattr(certificates, "find_certificates", lambda *a: [_certificate(verified)])
    choice = choose(op, request)
    assert choice.kernel.name == "torch"
    assert "stale certificate" in dict(choice.declined)["triton"]


def test_a_changed_configuration_changes_the_hash(tmp_path: Path) -> None:
    table = configs.Configs(tmp_path / "tuning.toml")
    kernel = OPS["rms_norm"].kernel("triton")
    assert kernel.source is not None
    entry = '[[config]]\nop_kernel = "triton"\nkernel = "forward"\nset = {{ num_warps = {} }}\n{}\n'
    said = 'evidence = "words"'
    hashes = []
    for warps, evidence in ((4, said), (8, said), (4, ""), (4, 'measured = [{ case = "a", us = 1.0 }]')):
        table.path.write_text(entry.format(warps, evidence), encoding="utf-8")
        with configs.substitute_configs(kernel.source, configs.Configs(table.path)):
            hashes.append(kernel.hash())
    assert hashes[0] != hashes[1]
    assert hashes[0] == hashes[2] == hashes[3], "what was measured of a configuration is no part of it"


def test_configurations_are_picked_in_order(tmp_path: Path) -> None:
    table = tmp_path / "tuning.toml"
    table.write_text(
        '[[config]]\nop_kernel = "triton"\nkernel = "forward"\nwhen = { N = [1, 64], dtype = ["bfloat16"] }\n'
        'set = { num_warps = 1 }\nevidence = "small"\n'
        '[[config]]\nop_kernel = "triton"\nkernel = "forward"\nset = { num_warps = 8 }\nevidence = "any"\n',
        encoding="utf-8",
    )
    found = configs.Configs(table)
    assert found.pick("forward", N=64, dtype=torch.bfloat16) == {"num_warps": 1}
    assert found.unused_entries("triton") == ["forward {}"]
    assert found.pick("forward", N=65, dtype=torch.bfloat16) == {"num_warps": 8}
    assert found.pick("forward", N=64, dtype=torch.float32) == {"num_warps": 8}
    assert found.unused_entries("triton") == []
    with pytest.raises(LookupError, match=r"no configuration of triton\.backward"):
        found.pick("backward", N=64)
