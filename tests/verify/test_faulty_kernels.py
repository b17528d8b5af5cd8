"""Kernels broken on purpose: each must be caught, and the death of a kernel must be told, not suffered."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import forked
import pytest

from kernelworks.build import cpp
from kernelworks.dispatch.op import OPS
from kernelworks.verify import verify

OP_PACKAGE = OPS["rms_norm"].op_package

# Runs the worker on a copy of the op package beside which lie its headers, changed, and on the few cases that a kernel
# with a certificate is tried on.
WORKER = """
import dataclasses, sys
from pathlib import Path
import kernelworks
from kernelworks.dispatch.op import OPS
sys.path.insert(0, sys.argv[2])
from telling_cases import SMOKE, telling
op = OPS["rms_norm"]
op.contract = dataclasses.replace(op.contract, cases=telling(op, SMOKE))
op.kernels = (*op.template.cpp_op_kernels(Path(sys.argv[1]), {"scalar": "rowwise.cpp"}), *op.kernels[-2:])
sys.argv = ["worker", "rms_norm", "scalar"]
from kernelworks.verify.worker import main
main()
"""

LOOP = """for (int64_t j = 0; j < n; ++j) {
        const double v = in.exact(j), z"""
WRITE = "out[j] = "

# name -> (what stands in the source, what stands there instead, what the verification must say)
BREAKAGES = {
    "nothing": ("", "", ""),
    "reads one element too far": ("j < n; ++j) squares +=", "j <= n; ++j) squares +=", "died"),
    "writes one element too far": (LOOP, LOOP.replace("j < n", "j < n + 1"), "died"),
    "leaves the last element unwritten": (LOOP, LOOP.replace("j < n", "j < n - 1"), "elements off"),
    "writes to its input": (
        WRITE,
        "const_cast<T&>(in.x[j]) = from_float<T>(0.0f); " + WRITE,
        "an input was written to",
    ),
    "keeps the kernel stride in 32 bits": (
        "const Input<T, ADD> in{x[i],",
        "const Input<T, ADD> in{x.data + static_cast<int>(i * x.stride),",
        "died",
    ),
    "counts its calls": (
        "return {mean, 1.0 / std::sqrt(squares",
        "static int calls = 0; return {mean, (++calls % 100 == 0 ? 2 : 1) / std::sqrt(squares",
        "elements off",
    ),
    "forgets eps": ("(n) + eps)", "(n))", "elements off"),
    "drops a gradient term": ("- z(j) * mean_gwz", "", "gradient of x"),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_kernel_is_caught(name: str, tmp_path: Path) -> None:
    old, new, expected = BREAKAGES[name]
    sources = {h: (cpp.SIMD / h).read_text(encoding="utf-8") for h in ("norm.hpp", "moments.hpp")}
    assert any(old in source for source in sources.values())
    op_package = tmp_path / "rms_norm"
    op_package.mkdir()
    shutil.copy(OP_PACKAGE / "rowwise.cpp", op_package)
    for header, source in sources.items():
        (op_package / header).write_text(source.replace(old, new, 1) if old else source, encoding="utf-8")
    done = forked.python(str(op_package), str(Path(forked.__file__).parent), code=WORKER)
    if expected == "died":
        assert done.returncode < 0, done.stdout[-500:]
        return
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    messages = [f["message"] for f in result["failures"]]
    if expected:
        assert any(expected in m for m in messages), messages
        assert all("kernelworks verify rms_norm.scalar" in f["reproduce"] for f in result["failures"])
    else:
        assert not messages
        assert result["worst"] <= 1.0
        assert all(result["checks"].values())


def test_the_death_of_a_kernel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    dying = tmp_path / "dying.py"
    at = json.dumps({"at": ["scalar", "N=17", "float32"]})
    dying.write_text(f"import os\nprint({at!r}, flush=True)\nos.write(2, b'no room left')\nos.kill(os.getpid(), 11)\n")
    monkeypatch.setattr(sys.modules["kernelworks.verify"], "WORKER", (sys.executable, str(dying)))
    (verification,) = verify("rms_norm", "scalar")
    assert not verification.certified
    assert verification.failures[0].message == "killed by SIGSEGV: no room left"
    assert (
        verification.failures[0].reproduce
        == "python -m kernelworks verify rms_norm.scalar --case 'N=17' --dtype float32"
    )


@pytest.mark.usefixtures("quick_processes")
def test_a_verification_certifies_this_source_and_only_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelworks.dispatch import certificates

    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.setattr(certificates, "_shipped", lambda kind: {})
    kernel = OPS["rms_norm"].kernel("scalar")
    (partial,) = verify("rms_norm", "scalar", case="N=17")
    assert partial.worst <= 1.0 and not partial.failures
    assert not partial.certified  # one case is not a verification
    (verification,) = verify("rms_norm", "scalar")
    assert verification.certified and verification.mutants_rejected == verification.mutants
    (kept,) = certificates.find_certificates("rms_norm", "scalar")
    assert kept.worst_by_dtype == verification.worst_by_dtype and set(kept.worst_by_dtype["float32"]) >= {
        "output",
        "sum",
    }
    assert max(share for outputs in kept.worst_by_dtype.values() for share in outputs.values()) == kept.worst
    assert certificates.invalid_reason("rms_norm", kernel) is None
    monkeypatch.setattr(cpp, "COMMON_FLAGS", (*cpp.COMMON_FLAGS, "-DANOTHER"))
    cpp.source_hash.cache_clear()
    assert "stale" in (certificates.invalid_reason("rms_norm", kernel) or "")
    monkeypatch.undo()
    cpp.source_hash.cache_clear()


def test_no_shipped_certificate_is_stale() -> None:
    """A source that changed since it was verified must be verified again before it ships."""
    from kernelworks.dispatch import certificates

    stale = []
    for path in sorted(certificates.SHIPPED_DIR.glob("*.json")):
        for record in json.loads(path.read_text(encoding="utf-8")):
            op = OPS[record["op"]]
            if op.kernel(record["kernel"]).hash() != record["source_hash"]:
                stale.append(f"{path.stem}: {record['op']}.{record['kernel']}")
    assert not stale, f"stale certificates, run `kernelworks verify`: {', '.join(stale)}"
    assert os.environ.get("CI") is None or list(certificates.SHIPPED_DIR.glob("*.json"))
