"""What the forms of rows make: wrong expressions are caught, launches are as written, and a room's parts are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forked
from kernelworks.forms.derived import told
from kernelworks.forms.launches import norm_text
from kernelworks.op import OPS

# What stands in log_softmax's rowwise.cpp, what stands there instead, and what a proof says.
WRONG = {
    "nothing": ("", "", ""),
    "no logarithm": ("return kw::log(sum)", "return sum", "elements off"),
    "added": ("distance - log_sum", "distance + log_sum", "elements off"),
    "of the exponentials": ("OF_EXP = false", "OF_EXP = true", "elements off"),
    "a gradient's sum left out": ("return sum + g;", "return sum;", "gradient of x"),
    "the output for its exponential": ("-kw::exp_nonpositive(y)", "-y", "gradient of x"),
}

PROOF = """
import json, sys
from pathlib import Path
from kernelworks.build.rows import cpp_rows
from kernelworks.op import OPS
from kernelworks.prove.parity import parities

op = OPS["log_softmax"]
rows, said = op.rows[-2:], {}
launches = {"forward": op.form._forward, "backward": op.form._backward}
for room in sorted(Path(sys.argv[1]).iterdir()):
    op.rows = (*cpp_rows(room, targets={"scalar": "rowwise.cpp"}, bound=True, **launches), *rows)
    op.forget()
    cases = [c for c in op.contract.cases if c.name in ("N=33", "dim 1 of [3, 17, 5]", "nan N=33")]
    found = [p.message for case in cases for dtype in case.dtypes for p in parities(op, "scalar", case, dtype)]
    said[room.name] = [message for message in found if message]
print(json.dumps(said))
"""


def test_a_wrong_expression_is_caught(tmp_path: Path) -> None:
    source = (OPS["log_softmax"].room / "rowwise.cpp").read_text(encoding="utf-8")
    for name, (old, changed, _) in WRONG.items():
        assert old in source, name
        (tmp_path / name).mkdir()
        (tmp_path / name / "rowwise.cpp").write_text(source.replace(old, changed) if old else source, "utf-8")
    done = forked.python(str(tmp_path), code=PROOF)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    for name, (_, _, expected) in WRONG.items():
        assert (not said[name]) if not expected else any(expected in m for m in said[name]), (name, said[name][:3])


LAUNCH = """
def bind(library):
    kernel = library.rms_norm
    def forward(x, weight, eps, residual, out=None):
        if weight is not None and not weight.is_contiguous():
            weight = weight.contiguous()
        run, threads = shared(kernel, x.numel())

        if residual is None:
            output = empty(x.shape, dtype=x.dtype) if out is None else out
            run(output, None, as_rows(x), None, weight, None, eps, threads)
            return output

        made = (empty(x.shape, dtype=x.dtype), empty(x.shape, dtype=x.dtype)) if out is None else out
        run(*made, as_rows(x), as_rows(residual), weight, None, eps, threads)
        return made

    return forward
"""


def test_a_norms_launch_as_it_is_written() -> None:
    assert norm_text("rms_norm", ("x", "weight", "eps", "residual"), optional=True) == LAUNCH


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm"])
def test_what_was_derived_is_told(name: str) -> None:
    said = told(OPS[name])
    assert {"check", "refused calls", "cost", "dims", "cases", "kernels", "mutants", "forward", "backward"} <= set(said)
    assert "short tile" in said["mutants"] and "rowwise.cpp" in said["kernels"]
