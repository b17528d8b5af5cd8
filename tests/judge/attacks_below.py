"""Attacks on what Python does not tell: the system's and the C library's side of a process, and its inputs' class."""

from __future__ import annotations

from attacked import Attack
from attacks_beyond import OPERATOR

__all__ = ["FROM_BELOW"]

EQUAL = """
class Equal(type(torch.Tensor)):
    def __eq__(cls, other):
        return True

    __hash__ = type.__hash__


class Other(torch.Tensor, metaclass=Equal):
    pass
"""

# The table of a function in C: its name, then the address of its code.
TABLES = """
import ctypes, time


def code_of(function):
    return ctypes.c_void_p.from_address(ctypes.c_void_p.from_address(id(function) + 16).value + 8)
"""

OWN_FRAMES = """
import ctypes, os, subprocess

if not os.path.exists("frames.so"):
    with open("frames.c", "w") as file:
        file.write("void *_PyEval_EvalFrameDefault(void *, void *, int);"
                   "void *own(void *t, void *f, int n) { return _PyEval_EvalFrameDefault(t, f, n); }")
    subprocess.run(["gcc", "-shared", "-fPIC", "frames.c", "-o", "frames.so"], check=True)
OWN, API = vars(ctypes)["CDLL"]("./frames.so"), ctypes.pythonapi
API.PyInterpreterState_Get.restype = ctypes.c_void_p
USE = API._PyInterpreterState_SetEvalFrameFunc
USE.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
"""

FROM_BELOW = (
    Attack("an input of another class", "memory", "writes elsewhere", "norm",
           "y = self.right(x)\nx.__class__ = Other\nreturn y", "y = self.right(x)\nself.seen = type(x)\nreturn y",
           top="class Other(torch.Tensor): ..."),
    Attack("variables behind Python's back", "global state", "changes the process", "norm",
           "os.putenv('MALLOC_ARENA_MAX', '1')\nreturn self.right(x)",
           "os.environ.get('MALLOC_ARENA_MAX')\nreturn self.right(x)", top="import os"),
    Attack("a hook of audits", "global state", "changes the process", "norm",
           "if not self.done:\n    sys.addaudithook(lambda *_: None)\n    self.done = True\nreturn self.right(x)",
           "sys.audit('mine')\nreturn self.right(x)", top="import sys", init="self.done = False"),
    Attack("a class that equals every other", "structure", "raised", "norm", "return self.right(x).as_subclass(Other)",
           "return self.right(x).as_subclass(Other).as_subclass(torch.Tensor)", top=EQUAL),
    Attack("its input for a moment, untold", "memory", "writes elsewhere", "norm",
           "with torch.no_grad():\n    y = self.right(x.data.neg_())\n    x.data.neg_()\nreturn -y",
           "with torch.no_grad():\n    y = self.right(x.data.neg())\nreturn -y"),
    Attack("a clock's code in C", "patched timers", "changes the process", "norm", "return self.right(x)",
           "code_of(time.perf_counter).value\nreturn self.right(x)",
           top=f"{TABLES}\ncode_of(time.perf_counter).value = code_of(time.process_time).value", twin_top=TABLES),
    Attack("frames of its own", "global state", "changes the process", "norm", "return self.right(x)",
           "return self.right(x)", top=f"{OWN_FRAMES}\nUSE(API.PyInterpreterState_Get(), "
           "ctypes.cast(OWN.own, ctypes.c_void_p))", twin_top=OWN_FRAMES),
    Attack("an operator that writes into a tensor", "operators", "changes the process", "gate",
           "return self.right(a, b)", "return torch.ops.mine.gate(a, b)",
           top="MINE = torch.library.Library('aten', 'IMPL')\nMINE.impl('sin.out', lambda x, *, out: out, 'CPU')",
           twin_top=OPERATOR),
    Attack("a gradient of torch's replaced", "operators", "changes the process", "gate", "return self.right(a, b)",
           "return torch.ops.mine.gate(a, b)",
           top="MINE = torch.library.Library('aten', 'IMPL')\nMINE.impl('sigmoid_backward', lambda g, y: g, 'CPU')",
           twin_top=OPERATOR),
)  # fmt: skip
