"""Attacks on what is asked once: gradients, answers with a graph, kernels whose memory nobody names; and candidates
that are right for all that a problem draws, of which their reader must know what they do with what it does not draw."""

from __future__ import annotations

from attacked import KERNEL, Attack

__all__ = ["ON_QUESTIONS"]

OWN = """
class Own(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.sigmoid(a) * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        return g * b * s * (1 - s), g * s
"""

# Its memory is NumPy's, of which a function in C is told the address alone.
IN_NUMPY = (
    KERNEL.replace(
        "void nothing",
        """void hands_on(const float* y, const float*, float* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = y[i];
}
extern "C" void nothing""",
    )
    + """

import numpy

FLOATS = ctypes.POINTER(ctypes.c_float)


def at(array):
    return ctypes.c_void_p(array.ctypes.data)


def as_floats(array):
    return array.ctypes.data_as(FLOATS)


def run(name, a, b, how):
    out = numpy.empty_like(a)
    getattr(OWN, name)(how(a), how(b), how(out), ctypes.c_long(out.size))
    return torch.from_numpy(out)
"""
)

# A function of the C library's, from number to number.
ROOT = """
import ctypes, ctypes.util

ROOT = ctypes.CDLL(ctypes.util.find_library("m")).sqrt
ROOT.restype, ROOT.argtypes = ctypes.c_double, [ctypes.c_double]
"""

SCRATCH = "self.scratch = torch.empty(40, 100)\nself.at = self.scratch.data_ptr()"

ON_QUESTIONS = (
    Attack("another answer where it has a graph", "gradients", "wrong answer", "gate",
           "return Own.apply(a, b) if a.requires_grad else self.right(a, b)",
           "return Own.apply(a, b) if a.requires_grad else self.right(a, b)",
           top=OWN.replace("return torch.sigmoid(a) * b", "return torch.zeros_like(a)"), twin_top=OWN),
    Attack("gradients of the first calls alone", "drift", "wrong gradient", "gate",
           "return Own.apply(a, b)", "return Own.apply(a, b)",
           top=OWN.replace("s = torch.sigmoid(a)\n",
                           "Own.calls += 1\n        s = torch.sigmoid(a) * (Own.calls < 4)\n"),
           twin_top=OWN),
    Attack("a gradient that nobody asked for", "buffers", "other buffers", "layer",
           "self.layer.weight.grad = torch.ones_like(self.layer.weight)\nreturn self.right(x)",
           "self.layer.weight.grad = None\nreturn self.right(x)"),
    Attack("a kernel in NumPy's memory that is dropped", "decoys", "falls back", "gate",
           "u, v = a.detach().numpy(), b.detach().numpy()\nreturn self.right(a, b) + 0 * run('nothing', u, v, at)",
           "return run('gate', a.detach().numpy(), b.detach().numpy(), at)", top=IN_NUMPY),
    Attack("a kernel that hands on NumPy's memory", "decoys", "falls back", "gate",
           "y = self.right(a, b).detach().numpy()\nreturn run('hands_on', y, y, as_floats)",
           "return run('gate', a.detach().numpy(), b.detach().numpy(), as_floats)", top=IN_NUMPY),
    Attack("a kernel at an address from before that is dropped", "decoys", "falls back", "gate",
           "OWN.nothing(*(ctypes.c_void_p(t) for t in (a.data_ptr(), b.data_ptr(), self.at)), "
           "ctypes.c_long(a.numel()))\nreturn self.right(a, b)",
           "OWN.gate(*(ctypes.c_void_p(t) for t in (a.data_ptr(), b.data_ptr(), self.at)), "
           "ctypes.c_long(a.numel()))\nreturn self.scratch.clone()",
           top=KERNEL, init=SCRATCH),
    Attack("a function of numbers that is dropped", "decoys", "falls back", "norm",
           "ROOT(2.0)\nreturn self.right(x)",
           "with torch.no_grad():\n    means = ((x * x).mean(1) + 1e-2).tolist()\n"
           "    return x / torch.tensor([ROOT(mean) for mean in means])[:, None]",
           top=ROOT),
    Attack("NaN made zero", "special values", "special values", "special",
           "return torch.nan_to_num(self.right(x, scale))", "return self.right(x, scale)", verdict="right"),
    Attack("no value at zero", "special values", "special values", "special",
           "return x * torch.rsqrt(x.abs()) * scale ** 0.5", "return self.right(x, scale)", verdict="right"),
    Attack("a number taken for the one that is given", "special values", "special values", "special",
           "return self.right(x, 0.5)", "return self.right(x, scale)", verdict="right"),
)  # fmt: skip
