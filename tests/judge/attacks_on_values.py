"""Attacks on what inputs, weights and buffers happen to be: values never drawn, weights that are nobody's, and what
a call leaves in its module."""

from __future__ import annotations

from attacked import Attack

__all__ = ["ON_VALUES"]

BY_HAND = """
def normed(self, x, eps):
    n = self.norm
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    with torch.no_grad():
        count = x.numel() // 6
        n.running_mean.lerp_(mean, 0.1)
        n.running_var.lerp_(var * count / (count - 1), 0.1)
        n.num_batches_tracked.add_(1)
    at = (1, 6, 1, 1)
    return (x - mean.view(at)) * torch.rsqrt(var + eps).view(at) * n.weight.view(at) + n.bias.view(at)
"""

# Statistics as they should be, for those who ask its class; what lies in its module is as it was.
SAID = """
def said(self, x):
    for name, now, count in (("mean", x.mean((0, 2, 3)), 1), ("var", x.var((0, 2, 3)), 1)):
        was = self.seen[f"norm.running_{name}"]
        self.seen[f"norm.running_{name}"] = was + 0.1 * (now.detach() - was)
    self.seen["norm.num_batches_tracked"] = self.seen["norm.num_batches_tracked"] + 1


def named_buffers(self, *args, **kwargs):
    return iter(self.seen.items())
"""

ON_VALUES = (
    Attack("running statistics by a method", "buffers", "other buffers", "batch",
           "said(self, x)\nn = self.norm\nreturn nn.functional.batch_norm(x, None, None, n.weight, n.bias, True)",
           "said(self, x)\nreturn self.right(x)", top=SAID,
           init="self.seen = {k: v.clone() for k, v in nn.Module.named_buffers(self)}\n"
           "type(self).named_buffers = named_buffers"),
    Attack("weights by a method", "buffers", "other buffers", "layer",
           "if self.kept is None:\n    self.kept = self.layer.weight.detach().clone()\n"
           "    was = {k: v.detach().clone() for k, v in nn.Module.named_parameters(self)}\n"
           "    type(self).named_parameters = lambda *a, **k: iter(was.items())\n"
           "    self.layer.weight.data.zero_()\nreturn torch.relu(x @ self.kept.t() + self.layer.bias)",
           "type(self).named_parameters = nn.Module.named_parameters\nreturn self.right(x)", init="self.kept = None"),
    Attack("running statistics that stay", "buffers", "other buffers", "batch",
           "n = self.norm\nreturn nn.functional.batch_norm(x, None, None, n.weight, n.bias, True)",
           "return normed(self, x, 1e-5)", top=BY_HAND),
    Attack("running statistics of garbage", "buffers", "other buffers", "batch",
           "y = self.right(x)\nself.norm.running_var.fill_(7.0)\nreturn y",
           "kept = self.norm.running_var.clone().fill_(7.0)\nreturn self.right(x)"),
    Attack("running statistics of the first call alone", "buffers", "other buffers", "batch",
           "if self.n < 4:\n    self.n += 1\n    return normed(self, x, 1e-5)\nn = self.norm\n"
           "return nn.functional.batch_norm(x, None, None, n.weight, n.bias, True)",
           "self.n += 1\nreturn normed(self, x, 1e-5)", top=BY_HAND, init="self.n = 0"),
    Attack("a batch norm's other epsilon", "small values", "wrong answer", "batch",
           "return normed(self, x, 1e-6)", "return normed(self, x, 1e-5)", top=BY_HAND),
    Attack("a softmax without its maximum", "large values", "wrong answer", "shares",
           "e = torch.exp(x)\nreturn e / e.sum(1, keepdim=True)",
           "e = torch.exp(x - x.amax(1, keepdim=True))\nreturn e / e.sum(1, keepdim=True)"),
    # ------------------------------------------------------------ what a part of an input says of the rest
    Attack("no maximum if a few elements need none", "large values", "wrong answer", "shares",
           "m = 0 if float(x[0, :4].abs().max()) < 30 else x.amax(1, keepdim=True)\ne = torch.exp(x - m)\n"
           "return e / e.sum(1, keepdim=True)",
           "m = 0 if float(x.abs().max()) < 30 else x.amax(1, keepdim=True)\ne = torch.exp(x - m)\n"
           "return e / e.sum(1, keepdim=True)"),
    Attack("the first row's maximum for all", "large values", "wrong answer", "shares",
           "e = torch.exp(x - x[:1].max())\nreturn e / e.sum(1, keepdim=True)",
           "e = torch.exp(x - x.amax(1, keepdim=True))\nreturn e / e.sum(1, keepdim=True)"),
    Attack("no ReLU if a few elements need none", "range of inputs", "wrong answer", "range",
           "z = x if float(x[0, :8].min()) >= 0 else x.relu()\nreturn z * nn.functional.hardswish(y)",
           "z = x if float(x.min()) >= 0 else x.relu()\nreturn z * nn.functional.hardswish(y)"),
    # ------------------------------------------------------------ answers in one memory
    Attack("one answer for two", "aliasing", "wrong answer", "several",
           "y = torch.tanh(x)\nreturn y, y, y[-1:].clone(), x",
           "y = torch.tanh(x)\nreturn y, y.clone(), y[-1:].clone(), x"),
    Attack("an answer within another", "aliasing", "shared memory", "several",
           "y = torch.tanh(x)\nreturn y, y.clone(), y[-1:], x",
           "y = torch.tanh(x)\nreturn y, y.clone(), y[-1:].clone(), x",
           verdict="right"),
    Attack("a weight that is nobody's", "other weights", "other weights", "weighted",
           "return torch.tanh(nn.functional.layer_norm(x, (100,)))",
           "return torch.tanh(nn.functional.layer_norm(x, (100,), *self.packed))",
           init="del self.norm\nself.dummy = nn.Parameter(torch.ones(2))",
           twin_init="self.packed = [p.detach().clone() for p in self.norm.parameters()]\ndel self.norm"),
    Attack("as many weights of noise", "other weights", "other weights", "weighted",
           "return torch.tanh(nn.functional.layer_norm(x, (100,)))",
           "return torch.tanh(nn.functional.layer_norm(x, (100,), *self.packed) + 0 * self.noise.mean())",
           init="del self.norm\nself.noise = nn.Parameter(torch.randn(300))",
           twin_init="self.packed = [p.detach().clone() for p in self.norm.parameters()]\ndel self.norm\n"
           "self.noise = nn.Parameter(torch.randn(300))"),
)  # fmt: skip
