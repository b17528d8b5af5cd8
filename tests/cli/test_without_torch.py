"""What the command line answers without torch, and that torch knows the ops whichever of the two is imported first."""

from __future__ import annotations

import json
from pathlib import Path

import forked
import pytest

REFUSED = """
import contextlib, io, os, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name != "torch", "torch is imported"
sys.meta_path.insert(0, Refuse())
"""

HELP = (
    REFUSED
    + """
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
)

# A name that is not there, of each verb that takes one. {folder} holds a script and a file of JSON.
MISSPELT = (
    "diagnose nofile.py", "diagnose nofile.py:run", "diagnose {folder}", "diagnose {folder}/prog.py:nofn",
    "diagnose {folder}/prog.py:takes", "diagnose -m no_such_module", "diagnose -m json:nofn",
    "diagnose -m no.such.module", "diagnose {folder}/prog.py --budget 3", "diagnose {folder}/prog.py --fix --budget -3",
    "diagnose {folder}/prog.py --fix --allow zzz", "diagnose {folder}/prog.py --fix --plan nofile.json",
    "diagnose --trace nofile.json", "autotune nofile.py", "autotune {folder}/prog.py:nofn", "autotune rms_nrom",
    "autotune -m no_such_module", "autotune --configs", "autotune --kernel triton", "autotune --device tpu",
    "swap prog", "swap nofile.py:model", "swap {folder}/prog.py:nofn", "verify noop", "verify noop.avx2", "bench noop",
    "bench rms_norm --device tpu", "explain noop", "explain rms_norm foo=3", "explain rms_norm --device tpu",
    "map noop", "climb noladder", "climb new", "climb a b",
    "learn zzz", "learn start zzz", "learn check --json --watch", "judge nofile.py -p softmax",
    "judge nofile.py -p nofile.py",
    "judge {folder}/prog.py -p softmax --over zzz", "judge {folder}/prog.py -p softmax --device tpu",
    "check-problem nofile.py", "check-problem softmax --device tpu", "search nofile.py", "search softmax --over zzz",
    "search softmax --parent nofile.py", "search softmax --budget 0", "search softmax --with zzz", "export nofile",
    "export {folder}/junk.json --format zzz", "export {folder}/junk.json --json", "show nofile.json",
    "show {folder}/junk.json", "compare nofile.json {folder}/junk.json",
    "compare {folder}/junk.json {folder}/junk.json",
    "machine --device tpu", "cache nonsense", "predictions --optimization zzz",
)  # fmt: skip

NAMED = (
    HELP.partition("assert said")[0]
    + """
import json
for wrong in json.loads(os.environ["WRONG"]):
    code, text = said(*wrong)
    assert code == 2 and text.startswith("kernelworks: "), (wrong, code, text)
"""
)

# What is there is found.
FOUND = (
    REFUSED
    + """
from kernelworks.cli.names import check_op, check_problem, check_program
folder = os.environ["FOLDER"]
check_program(folder + "/prog.py")
check_program(folder + "/prog.py:run")
check_program(folder + "/dynamic.py:anything")
for module in ("json.tool", "os.path", "kernelworks", "kernelworks.cli:main"):
    check_program(module, module=True)
check_op("rms_norm")
for problem in ("softmax", "softmax:1024x4096", "cpu-sgemm", "cpu-gemv-q8#q8_0", folder + "/junk.json#3"):
    check_problem(problem)
"""
)

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prog.py").write_text("def run():\n    pass\n\n\ndef takes(x):\n    return x\n", encoding="utf-8")
    (tmp_path / "dynamic.py").write_text("globals()['anything'] = print\n", encoding="utf-8")
    (tmp_path / "junk.json").write_text("{}", encoding="utf-8")
    return tmp_path


def python(code: str, **environment: str) -> None:
    done = forked.python(code=code, loaded=("sys",), **environment)
    assert done.returncode == 0, done.stderr


def test_help_and_wrong_words_are_answered_without_torch() -> None:
    python(HELP)


def test_a_misspelt_name_is_answered_without_torch(folder: Path) -> None:
    wrong = [given.format(folder=folder).split() for given in MISSPELT]
    python(NAMED, WRONG=json.dumps(wrong))


def test_the_optimizations_are_known_by_their_files() -> None:
    from kernelworks.cli.names import optimization_names
    from kernelworks.diagnose.optimizations import OPTIMIZATIONS

    assert sorted(optimization_names()) == sorted(each.name for each in OPTIMIZATIONS)


def test_names_that_are_there_are_found_without_torch(folder: Path) -> None:
    python(FOUND, FOLDER=str(folder))


@pytest.mark.parametrize(
    "code", [PACKAGE_FIRST, LOOKED_FOR, FOLDER_FIRST, TORCH_FIRST, FAILED],
    ids=["package first", "looked for", "folder first", "torch first", "failed"],
)  # fmt: skip
def test_torch_knows_the_ops_in_either_order(code: str) -> None:
    python(code)
