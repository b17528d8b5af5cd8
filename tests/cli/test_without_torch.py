"""What the command line answers without torch, and that torch knows the ops whichever of the two is imported first."""

from __future__ import annotations

import forked
import pytest

HELP = """
import contextlib, io, sys
from kernelworks.__main__ import main
from kernelworks.cli import VERBS

def said(*arguments):
    sys.argv = ["kernelworks", *arguments]
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            main()
        except SystemExit as leave:
            code = leave.code
    assert "torch" not in sys.modules, arguments
    return code, text.getvalue()

assert said("--version")[0] == 0
assert said("--help")[0] == 0
assert said()[0] == 2
for verb in VERBS:
    code, text = said(verb, "--help")
    assert code == 0 and "Usage" in text, verb
for wrong in (("diagnos",), ("--nonsense",), ("diagnose",), ("bench", "--threads", "no"), ("compare", "a.json")):
    code, text = said(*wrong)
    assert code == 2 and text.startswith("kernelworks: "), (wrong, code, text)
"""

KNOWN = "torch.ops.kernelworks.rms_norm.default, torch.ops.kernelworks.softmax_backward"

PACKAGE_FIRST = f"""
import sys
import kernelworks
assert "torch" not in sys.modules
before = len(sys.meta_path)
import torch
{KNOWN}
assert len(sys.meta_path) == before - 1 and "exec_module" not in vars(torch.__loader__)
assert "kernelworks.dispatch.op" not in sys.modules
"""

LOOKED_FOR = f"""
import importlib.util
import kernelworks
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch")
assert importlib.util.find_spec("no_such_module") is None
import torch
{KNOWN}
"""

FOLDER_FIRST = f"""
import kernelworks.machine.environment, kernelworks.records, kernelworks.dispatch.op
import torch
{KNOWN}
"""

TORCH_FIRST = f"""
import torch, sys
before = list(sys.meta_path)
import kernelworks
{KNOWN}
assert sys.meta_path == before
"""

# An import of torch that fails leaves nothing behind that would keep the next one from telling torch.
FAILED = """
import sys
import kernelworks
sys.modules["torch.version"] = None
try:
    import torch
except ImportError:
    pass
else:
    raise AssertionError
for name in [name for name in sys.modules if name.split(".")[0] == "torch" and sys.modules[name] is None]:
    del sys.modules[name]
assert type(sys.meta_path[0]).__module__ == "kernelworks.dispatch.torch_import"
"""


def python(code: str) -> None:
    done = forked.python(code=code, loaded=("sys",))
    assert done.returncode == 0, done.stderr


def test_help_and_wrong_words_are_answered_without_torch() -> None:
    python(HELP)


@pytest.mark.parametrize(
    "code", [PACKAGE_FIRST, LOOKED_FOR, FOLDER_FIRST, TORCH_FIRST, FAILED],
    ids=["package first", "looked for", "folder first", "torch first", "failed"],
)  # fmt: skip
def test_torch_knows_the_ops_in_either_order(code: str) -> None:
    python(code)
