"""The GPU's path through a whole model, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough  # each of its kernels is interpreted on the cases that tell most
def test_a_model_on_triton_rows() -> None:
    script = Path(__file__).with_name("interpreted_model.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["no_logits"] and found["pair"]
    # an op package's own kernel, or one that an op template made for it
    kernels = found["kernels"]
    assert all(name.endswith(".triton") or name.startswith("kernelworks.tile.") for name in kernels), kernels
    # float32 through one layer of width 32: a few hundred roundings of numbers near one
    assert max(found["logits"], found["loss"], found["gradients"]) <= 300 * 2.0**-24, found
