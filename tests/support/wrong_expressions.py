"""An op template's expressions, written wrong on purpose: the comparison with float64 must see each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import forked

from kernelworks.dispatch.op import OPS

VERIFICATION = """
import json, sys
from pathlib import Path
from kernelworks.build.kernels import cpp_kernels
from kernelworks.templates.launches import backward_of, forward_of
from kernelworks.dispatch.op import OPS
from kernelworks.verify.parity import parities

folder, name, file, cases = sys.argv[1:]
op = OPS[name]
kernels, said = op.kernels[-2:], {}
launches = LAUNCHES
for op_package in sorted(Path(folder).iterdir()):
    op.kernels = (*cpp_kernels(op_package, targets={"scalar": file}, bound=True, **launches), *kernels)
    op.forget()
    tried = [c for c in op.contract.cases if c.name in json.loads(cases)]
    found = [p.message for case in tried for dtype in case.dtypes for p in parities(op, "scalar", case, dtype)]
    said[op_package.name] = [message for message in found if message]
print(json.dumps(said))
"""


def caught(
    folder: Path, op: str, file: str, wrong: Mapping[str, tuple[str, str, str]], launches: str, cases: Iterable[str]
) -> None:
    """Each of ``wrong``, name: (what stands in ``file``, what is put there, what the comparison says of it), is seen;
    one that puts nothing passes. ``launches`` is an expression of both passes' launches."""
    source = (OPS[op].op_package / file).read_text(encoding="utf-8")
    for name, (old, changed, _) in wrong.items():
        assert old in source, name
        (folder / name).mkdir()
        (folder / name / file).write_text(source.replace(old, changed) if old else source, "utf-8")
    code = VERIFICATION.replace("LAUNCHES", launches)
    done = forked.python(str(folder), op, file, json.dumps(list(cases)), code=code)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    for name, (_, _, expected) in wrong.items():
        assert (not said[name]) if not expected else any(expected in m for m in said[name]), (name, said[name][:3])
