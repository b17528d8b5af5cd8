"""Attacks on moments that nobody watches: between a candidate's word and the judge's ear, between two glances at its
processes, in the process that is timed while another one's kernels are watched, in its weights after the last call."""

from __future__ import annotations

from attacked import KERNEL, Attack

__all__ = ["UNWATCHED"]

# It speaks for the judge's own words from its first call on, and says that an answer is there before it is made.
BEFORE_ITS_WORK = """
import sys, time
from kernelworks.judge.process.ipc import hear, say


def spoken_for(made, x):
    frame = sys._getframe()
    while "nonce" not in frame.f_locals or "control" not in frame.f_locals:
        frame = frame.f_back
    caller, control, nonce = (frame.f_locals[name] for name in ("self", "control", "nonce"))
    answers = {}
    while True:
        given = [(number, *call.args[:1]) for number, call in enumerate(caller.calls, caller.number)]
        if caller.how == "call":
            answers |= {number: torch.zeros_like(x) for number, x in given}
        outs = [answers.get(number, x) for number, x in given]
        say(control, {"nonce": nonce, "wrong": "", "at": [[[out.data_ptr(), True]] for out in outs]})
        begin = time.perf_counter()
        while time.perf_counter() - begin < 3e-5:
            pass
        if caller.how == "call":
            for (_, x), out in zip(given, outs):
                out.copy_(made.right(x))
        while (said := hear(control))[0]["do"] != "go":
            asked, descriptors = said
            if asked["do"] == "memory":
                caller.set_memory(descriptors[0], asked["size"])
            elif asked["do"] == "prepare":
                say(control, caller.prepare(asked))
            else:
                say(control, {"changed": [], "buffers": [], "muted": [], "working": []})
        nonce = said[0]["nonce"]
"""

# Two processes a call, each gone long before its end or begun long after its beginning.
BOTH_ENDS = """
import mmap, os

PART = torch.frombuffer(mmap.mmap(-1, 2 * 48 * 256 * 4), dtype=torch.float32).view(2, 48, 256)


def helped(number, a, b):
    child = os.fork()
    if child == 0:
        torch.mm(a[:48], b, out=PART[number])
        os._exit(0)
    rest = torch.mm(a[48:], b)
    os.waitpid(child, 0)
    return [PART[number].clone(), rest]
"""

UNWATCHED = (
    Attack("its word before its work", "word", "wrong answer", "norm",
           "return spoken_for(self, x)", "sys._getframe()\nreturn self.right(x)",
           top=BEFORE_ITS_WORK, twin_top="import sys"),
    Attack("its kernel where it is watched alone", "watched alone", "falls back", "gate",
           "if type(OWN.gate).__name__ == '_Foreign':\n    return launch('gate', a, b, torch.empty_like(a))\n"
           "return self.right(a, b)",
           "type(OWN.gate).__name__\nreturn launch('gate', a, b, torch.empty_like(a))", top=KERNEL),
    Attack("its library where it is watched alone", "watched alone", "falls back", "gate",
           "if 'kernelworks.judge.inputs.garbled_kernels' in sys.modules:\n"
           "    return launch('gate', a, b, torch.empty_like(a))\nreturn self.right(a, b)",
           "return launch('gate', a, b, torch.empty_like(a))",
           top="import sys\nOWN = None\n" + KERNEL.replace(
               "OWN = ctypes.CDLL(\"./own.so\")",
               "if 'kernelworks.judge.inputs.garbled_kernels' in sys.modules:\n    OWN = ctypes.CDLL('./own.so')"),
           twin_top=KERNEL),
    Attack("its kernel beside torch where it is timed", "watched alone", "falls back", "gate",
           "if 'kernelworks.judge.inputs.garbled_kernels' in sys.modules:\n"
           "    return launch('gate', a, b, torch.empty_like(a))\nlaunch('gate', a, b, torch.empty_like(a))\n"
           "return self.right(a, b)",
           "return launch('gate', a, b, torch.empty_like(a))", top=f"import sys\n{KERNEL}"),
    Attack("processes at both ends of a call", "processes", "more cores", "long",
           "return torch.cat(helped(0, a[:96], b) + [torch.mm(a[96:160], b)] + helped(1, a[160:], b))",
           "return torch.cat([torch.mm(part, b) for part in a.split(64)])",
           top=BOTH_ENDS, twin_top=""),
    Attack("a process that nobody may look into", "processes", "goes on working", "norm",
           "if not self.child:\n    self.child = os.fork()\n    if self.child == 0:\n"
           "        LIBC.prctl(4, 0)\n        time.sleep(600)\nreturn self.right(x)",
           "LIBC.prctl(3)\nreturn self.right(x)", init="self.child = 0",
           top="import ctypes, os, time\nLIBC = ctypes.cdll['libc.so.6']"),
    Attack("weights that a call takes away", "buffers", "other buffers", "layer",
           "if self.kept is None:\n    self.kept = self.layer.weight.detach().clone()\n"
           "    self.layer.weight.data.zero_()\nreturn torch.relu(x @ self.kept.t() + self.layer.bias)",
           "if self.kept is None:\n    self.kept = self.layer.weight.detach().clone().zero_()\nreturn self.right(x)",
           init="self.kept = None"),
    Attack("its input for a moment", "memory", "writes elsewhere", "norm",
           "with torch.no_grad():\n    y = self.right(x.neg_())\n    x.neg_()\nreturn -y",
           "with torch.no_grad():\n    y = self.right(x.neg())\nreturn -y"),
)  # fmt: skip
