"""What a process compiles beside a search, another one loads: inductor keeps its graphs, forward and backward."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelworks.diagnose.fix.compile_forms import FORM_READY, CompileForm
from kernelworks.diagnose.fix.compile_pool import CompilePool
from kernelworks.diagnose.optimization import Candidate, Site

PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.ones(8)), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop((x * self.weight).tanh() * FACTOR)

model, x = Net(), torch.ones(4, 8)

def run():
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()
"""


SECOND_PROCESS = """
import json, sys
import torch
from torch._dynamo.utils import counters
from kernelworks.diagnose.optimization import Candidate, CombinedChange, Scene, Site
from kernelworks.diagnose.optimizations.torch_compile import OPTIMIZATION
from kernelworks.diagnose.optimizations.trial import call_once
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.profile.process_state import read_settings, restore_settings
from kernelworks.profile.program import from_target

target, kind, random = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
program = from_target(target)
before, roots = read_settings(), find_roots(program.run)
scene = Scene(roots, program, walls=(1.0,))
site = Site("module", kind, type=kind)
change = OPTIMIZATION.apply(scene, Candidate("torch.compile", site, "", touches=frozenset({"ops"})))
changed = CombinedChange((change.random if random and change.random is not None else change,))
torch.set_float32_matmul_precision("high")  # as a search that has tried it and has put it back, like all of these
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)
torch.set_num_threads(torch.get_num_threads() + 1)
restore_settings(before)
call_once(roots, changed, lambda run: run, backward=True)
with changed:
    program.run()
print(json.dumps({"autograd": counters["aot_autograd"], "inductor": counters["inductor"]}))
"""


@pytest.mark.parametrize("random", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_second_process_finds_what_the_first_has_compiled(random: bool, tmp_path: Path) -> None:
    path = tmp_path / "told_by_its_factor.py"
    path.write_text(PROGRAM.replace("FACTOR", f"{1 + time.time_ns() % 1_000_000 / 1e6}"))  # that no cache has yet
    site = Site("module", f"{path.stem}.Net", type=f"{path.stem}.Net")
    candidate = Candidate("torch.compile", site, "compiled whole", touches=frozenset({"ops"}))
    form = CompileForm.of(candidate, [], random=random)
    told: list[dict[str, Any]] = []
    pool = CompilePool({"target": f"{path}:run", "args": [], "module": False}, 1, lambda: 0.0, tell=told.append)
    pool.hears({"kind": "compilers", "backward": True, "bytes_each": 1, "gpu_bytes_each": 0, "gpu_bytes_free": 0,
                "keeps": True, "wall_s": 0.0})  # fmt: skip
    pool.hears({"kind": "compile", "key": form.key, "says": form.says, "batch": 0})
    pool.hears({"kind": "go on"})
    while not told:
        pool.look()
        time.sleep(0.05)
    pool.close()
    assert told[0]["state"] == FORM_READY, pool.steps
    assert told[0]["cold_s"] > 0 and told[0]["loads_s"] > 0

    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, f"{path}:run", f"{path.stem}.Net", str(random)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["autograd"].get("autograd_cache_hit", 0) >= 1, found
    assert not found["autograd"].get("autograd_cache_miss") and not found["inductor"].get("fxgraph_cache_miss"), found


def test_a_build_that_is_cut_off_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.cpp_builder import CppBuilder

    from kernelworks.diagnose.optimizations.compiler_choices import choosing_nothing

    ends = [True, False]

    def linked(self: Any) -> None:
        Path(self._output.split()[-1]).write_bytes(b"a part" if ends[0] else b"all of it")
        if ends.pop(0):
            raise KeyboardInterrupt

    monkeypatch.setattr(CppBuilder, "build", linked)
    target, builder = tmp_path / "x.so", object.__new__(CppBuilder)
    builder._target_file, builder._output = str(target), f"-o {target}"
    with choosing_nothing():
        with pytest.raises(KeyboardInterrupt):
            builder.build()
        assert list(tmp_path.iterdir()) == [] and builder._output == f"-o {target}"
        builder.build()
    assert [path.name for path in tmp_path.iterdir()] == ["x.so"] and target.read_bytes() == b"all of it"
