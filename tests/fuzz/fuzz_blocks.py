"""What random programs are made of: expressions, normalisations, gates, attentions, losses, in many spellings.

Every text is a template for ``str.format``. ``{x}`` and ``{y}`` are values of one width, ``{D}`` is that width.
"""

from __future__ import annotations

HEADER = """
import copy
import functools
import math
import pickle

import torch
import torch.nn as tnn
import torch.nn.functional as F
import torch.nn.functional as functional
from torch import nn
from torch.nn import functional as fn
from torch.nn.functional import gelu, layer_norm, linear, rms_norm, scaled_dot_product_attention, silu, softmax
from torch.nn.functional import cross_entropy as xent
from transformers.activations import GELUActivation, NewGELUActivation, SiLUActivation
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb

SCALE = 1.0
EPS = 1e-6


def through(x):
    return x


def zeroed(x):
    x.zero_()
    return x + 1


def doubled(x):
    return x.mul_(2)


def half_turned(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def activated(x, kind="none"):
    return F.gelu(x, approximate=kind)


def normed(x, weight, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], weight, None, eps)


def angles(x):
    a = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] / torch.arange(1, x.shape[-1] // 2 + 1, dtype=x.dtype)
    a = torch.cat((a, a), -1).expand(x.shape[0], -1, -1)
    return a.cos(), a.sin()


def turned(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + half_turned(q) * sin, k * cos - half_turned(k) * sin


class SelfAttend(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=self.training)[0]


class Kept(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.seen = inner, []

    def forward(self, x):
        self.seen.append(float(x.detach().double().sum()))
        return self.inner(x)


class MySiLU(nn.SiLU):
    pass


class Leaky(nn.SiLU):
    def forward(self, x):
        return super().forward(x) + 0.1 * x


class Louder(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Named(nn.Linear):
    pass


class OnePlus(nn.Module):
    def forward(self, weight):
        return 1 + weight


class AsHalf(nn.Module):
    def forward(self, weight):
        return weight / 2
"""

# Of one value: elementwise, reductions that are spread again, views there and back. All keep the width.
UNARY = """
torch.tanh({x})|{x}.sigmoid()|torch.relu({x})|F.relu({x})|F.leaky_relu({x}, 0.1)|F.elu({x})|F.softplus({x})|{x}.abs()
torch.sqrt({x}.abs() + 1e-3)|{x}.square()|torch.pow({x}, 2)|{x} ** 3 / (1 + {x}.abs() ** 3)|torch.sin({x})|{x}.cos()
-{x}|{x}.clamp(-1, 1)|torch.exp(-{x}.abs())|torch.log1p({x}.abs())|torch.erf({x})|F.silu({x})|F.mish({x})
F.hardtanh({x})|torch.where({x} > 0, {x}, 0.1 * {x})|{x}.masked_fill({x} < 0, 0.5)|torch.nan_to_num({x})
{x}.tril() if {x}.dim() > 1 else {x}|{x}.cumsum(-1) / {D}|{x} - {x}.mean(-1, keepdim=True)
{x} / (1 + {x}.amax(-1, keepdim=True).abs())|{x} / (1 + {x}.std(-1, keepdim=True, correction=0))
F.normalize({x}, dim=-1)|torch.logsumexp({x}, -1, keepdim=True) + {x}|{x}.log_softmax(-1)|{x}.sort(-1)[0]|{x}.flip(-1)
{x}.roll(1, -1)|{x} + {x}.sum(-1, keepdim=True).expand({x}.shape)
{x}.unsqueeze(0).transpose(0, -1).transpose(0, -1).squeeze(0)|{x}.mT.contiguous().mT if {x}.dim() > 1 else {x}
{x}.reshape(-1, {D}).view({x}.shape)|{x}.flatten().unflatten(0, {x}.shape)|{x}.movedim(0, -1).movedim(-1, 0)
{x}.detach() + {x}|{x}.clone()|{x}.contiguous()|{x}.double().to({x}.dtype)|{x}.to(torch.bfloat16).to({x}.dtype)
torch.stack(({x}, {x})).sum(0)|torch.cat(({x}, {x}), 0)[: {x}.shape[0]]|{x}.narrow(-1, 0, {D})|{x}[..., :]|{x}[...]
torch.addcmul({x}, {x}, {x}, value=0.1)|torch.lerp({x}, {x}.abs(), 0.3)|torch.rsqrt({x}.abs() + 1)
{x}.index_select(-1, torch.arange({D}))|{x}.gather(-1, {x}.argsort(-1))
torch.einsum("...i,i->...i", {x}, torch.ones({D}, dtype={x}.dtype))|{x}.softmax(-1)|torch.softmax({x}, -1)
F.softmax({x}, -1)|F.softmax({x}, dim=-1)|softmax({x}, dim=0)|fn.softmax({x}, -1, dtype={x}.dtype)
torch.softmax({x}, dim=-1)|F.softmax({x}, dim=-1, dtype=torch.float32).to({x}.dtype)|nn.functional.softmax({x}, 0)
F.gelu({x})|gelu({x})|torch.nn.functional.gelu({x})|F.gelu({x}, approximate="tanh")
tnn.functional.gelu({x}, approximate="none")|functional.gelu({x}.transpose(0, -1)).transpose(0, -1)|activated({x})
activated({x}, kind="tanh")|getattr(F, "gelu")({x})|F.gelu(input={x})
functools.partial(F.gelu, approximate="tanh")({x})|(lambda t: F.gelu(t))({x})|torch.ops.aten.gelu({x})
0.5 * {x} * (1 + torch.tanh(math.sqrt(2 / math.pi) * ({x} + 0.044715 * {x} ** 3)))
{x} * 0.5 * (1 + torch.erf({x} / 1.41421))|F.layer_norm({x}, ({D},))|layer_norm({x}, [{D}], eps=1e-3)
F.layer_norm({x}, {x}.shape[-1:], torch.ones({D}, dtype={x}.dtype))
F.layer_norm({x}, ({D},), torch.ones({D}, dtype={x}.dtype), torch.zeros({D}, dtype={x}.dtype))|F.rms_norm({x}, ({D},))
rms_norm({x}, ({D},), torch.full(({D},), 1.5, dtype={x}.dtype), EPS)
F.layer_norm({x}.mT, {x}.mT.shape[-1:]).mT if {x}.dim() > 1 else {x}|F.linear({x}, torch.eye({D}, dtype={x}.dtype))
linear({x}, torch.eye({D}, dtype={x}.dtype).T, torch.ones({D}, dtype={x}.dtype))|F.dropout({x}, 0.0)
F.dropout({x}, 0.5, training=False)|F.glu(torch.cat(({x}, {x}), -1))|{x} * SCALE|through({x}) + 0
F.gelu({x}) if F.gelu is gelu else {x}|gelu({x}) if gelu is torch.nn.functional.gelu else -{x}
globals()["F"].gelu({x})|normed({x}, torch.ones({D}, dtype={x}.dtype))|normed(weight=None, x={x})|self.method({x})
self.static({x})|Program.static({x})|type(self).shared({x})|self.shared({x})|self.prop * {x}|self.held({x})
self.table["act"]({x})
""".replace("\n", "|").strip("|").split("|")  # fmt: skip

BINARY = """
{x} + {y}|{x} * {y}|{x} - 0.5 * {y}|{x} / (1 + {y}.abs())|torch.maximum({x}, {y})|torch.where({x} > {y}, {x}, {y})
torch.lerp({x}, {y}, 0.25)|torch.addcmul({x}, {y}, {y}, value=0.1)|torch.atan2({x}, {y} + 2)
torch.stack(({x}, {y}), -1).amax(-1)|F.silu({x}) * {y}|{y} * F.silu({x})|silu({x}) * {y}
torch.nn.functional.silu({x}) * {y}|F.silu({x}) * through({y})|F.silu({x}.clone()) * {y}.contiguous()
{x} * torch.sigmoid({x}) * {y}|F.silu({x}) * {y}[..., :1]|F.silu({x}) * 2.0|F.silu(input={x}) * {y}
F.silu({x}) * F.silu({y})|F.silu({x}) * {y} * F.silu({y})|(F.silu({x}) * {y}).neg() * {y}
F.gelu({x}, approximate="tanh") * {y}|{y} * F.gelu({x})|gelu({x}) * through({y})|F.gelu({x}) * F.gelu({y})
F.gelu({x}, approximate="tanh" if self.training else "none") * {y}|F.gelu({x}) * {y}[..., :1]|F.gelu({x}) * 2.0
F.silu(c := {x} + 1) * (c + {y})|F.silu({x}) * ({y} if self.training else {y} + 1)|F.gelu({x}) * {y}
self.act({x}) * {y}|{y} * self.act({x})|self.act({x}) * self.act({y})|self.gate({x}) * {y}
torch.einsum("...i,...i->...i", {x}, {y})|torch.cat(({x}, {y}), -1).unflatten(-1, (2, {D})).sum(-2)
F.mse_loss({x}, {y}) + {x}|F.cosine_similarity({x}, {y}, -1).unsqueeze(-1) * {x}
softmax({x} @ {y}.mT / {D}, -1) @ {y} if {x}.dim() > 1 else {x}|torch.softmax({x} * {y}, -1)|F.softmax({x}, -1) * {y}
""".replace("\n", "|").strip("|").split("|")  # fmt: skip

# Statements that write: into fresh copies, into values that others read later, into the program's inputs.
WRITES = """
{x} = {x}.clone(); {x}.add_({y})|{x} = {x}.clone(); {x}.mul_(0.5).clamp_(-2, 2)|{x} = {x} + 0; {x}[..., 0] = 0
{x} = {x}.clone(); {x}[..., ::2] = {y}[..., ::2]|{x} = F.gelu({x}); {x}.mul_(2)|{x} = F.softmax({x}, -1); {x} += 1
{x} = F.relu({x}.clone(), inplace=True)|{x} = F.silu({x} + 0, inplace=True) * {y}
t = {x} + 0; {x} = F.gelu(t) * zeroed(t)|t = {y} + 0; {x} = doubled(t) * F.gelu(t, approximate="tanh")
t = {x} + 0; {x} = F.silu(t) * zeroed(t)|t = {x} + 0; {x} = F.silu(t) * doubled(t)
t = {y} + 0; {x} = doubled(t) * F.silu(t)|t = {x} + 0; {x} = self.act(t) * self.wipe(t)
t = {x} + 0; u = F.gelu(t); t.zero_(); {x} = u + t|t = F.gelu({x}); v = t.view(-1); v.mul_(0.5); {x} = t
t = {x} + 0; n = F.layer_norm(t, ({D},)); t.add_(1); {x} = n + t|self.total += 1; {x} = {x} * self.total
self.register_buffer("last", {x}.detach().clone()); {x} = {x} + self.last
self.running.mul_(0.9).add_(0.1); {x} = {x} * self.running|t = torch.empty_like({x}); t.copy_({x}); {x} = F.gelu(t)
with torch.no_grad(): t = F.gelu({x})~{x} = {x} + t
with torch.autocast("cpu", torch.bfloat16): t = F.gelu({x}) * 2~{x} = {x} + t.to({x}.dtype)
with torch.autocast("cpu", enabled=False): t = F.softmax({x}, -1)~{x} = t * {x}
with torch.enable_grad(): {x} = F.gelu({x})
{x} = torch.utils.checkpoint.checkpoint(self.method, {x}, use_reentrant=False)
{x}.retain_grad() if {x}.requires_grad else None|{x}.register_hook(lambda g: g * 0.5) if {x}.requires_grad else None
{x} = {x}.detach(); {x} = F.gelu({x})|for _ in range(2): {x} = F.gelu({x})
{x} = [F.gelu(t) for t in ({x}, {y})][1] + {x}|{x} = sum(F.softmax(t, -1) for t in ({x}, {y}))
try: t = F.gelu({x}, approximate="wrong")~except RuntimeError: t = {x}~{x} = t + {x}
{x} = {x} if {x}.sum() > 0 else F.gelu({x})|{x} = F.gelu({x}) if self.training else F.gelu({x}, approximate="tanh")
assert F.gelu.__name__ == "gelu"|import torch.nn.functional as G; {x} = G.gelu({x})|{x} = self.method(x={x})
{x} = torch.cat([F.gelu(t) for t in {x}.split(2)], 0) if {x}.shape[0] else {x}|v = {x}.view_as({x}); {x} = F.gelu(v)
""".replace("\n", "|").strip("|").split("|")  # fmt: skip

# A root mean square normalisation by hand: (what may stand in each place). The first of each is the usual one.
NORM_ARGUMENT = ["x", "hidden", "x, residual=None", "x, scale=1.0", "x, *rest"]
NORM_BEFORE = [
    "", "", "", "kind = x.dtype; x = x.float()", "kind = x.dtype; x = x.to(torch.float32)", "x = x.clamp(-2, 2)",
    "x = x.nan_to_num()", "x = x + 0.1", "x = x.abs()", "self.calls += 1", "x = x.detach()", "x = x.clone().mul_(1)",
    "x = x.contiguous().view(-1, x.shape[-1]).view(x.shape)", "x.mul_(1.5) if not x.requires_grad else None",
    "x = x.transpose(0, -1).transpose(0, -1)",
]  # fmt: skip
NORM_SQUARE = [
    "x.pow(2)",
    "x * x",
    "x.square()",
    "x ** 2",
    "torch.square(x)",
    "x.abs().pow(2.0)",
    "x.pow(2).clamp(max=9)",
]
NORM_MEAN = [
    "({s}).mean(-1, keepdim=True)", "({s}).mean(dim=-1, keepdim=True)", "torch.mean({s}, -1, keepdim=True)",
    "({s}).sum(-1, keepdim=True) / x.shape[-1]", "({s}).mean(x.dim() - 1, True)", "({s}).mean(0, keepdim=True)",
    "({s}).mean(1, keepdim=True)", "({s}).mean(-2, keepdim=True)", "({s}).mean()",
    "({s}).median(-1, keepdim=True)[0]", "({s})[..., :4].mean(-1, keepdim=True)",
    "({s}).mean(-1, keepdim=True).detach()",
]  # fmt: skip
NORM_SCALE = [
    "x * torch.rsqrt({m} + self.eps)", "x / torch.sqrt({m} + self.eps)", "x * ({m} + self.eps).rsqrt()",
    "x * ({m} + self.eps) ** -0.5", "x * ({m} + self.eps).pow(-0.5)", "x / (torch.sqrt({m}) + self.eps)",
    "x * torch.rsqrt({m}.clamp(min=self.eps))", "x * torch.rsqrt({m} + self.eps).detach()",
    "x * torch.rsqrt({m} + EPS)", "x.mul(torch.rsqrt({m}.add(self.eps)))",
    "x * torch.rsqrt({m} + self.eps) * self.gain", "x * torch.rsqrt({m} + self.eps) * SCALE",
    "x / ({m} + self.eps).sqrt().clamp(min=0.5)", "F.normalize(x, dim=-1) * x.shape[-1] ** 0.5",
    "F.rms_norm(x, x.shape[-1:], None, self.eps)",
]  # fmt: skip
NORM_AFTER = [
    "self.weight * x", "x * self.weight", "self.weight * x", "(1 + self.weight) * x", "x.mul(self.weight)",
    "(self.weight * x).clamp(-1, 1)", "self.weight * x + 0", "self.weight * x.to(self.weight.dtype)",
    "x * self.weight + x", "self.weight.detach() * x", "self.weight * x.nan_to_num()", "self.weight * x.float()",
]  # fmt: skip
NORM = """
class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand({D}) + 0.5)
        self.{eps_name} = {eps}
        self.gain = 1.0
        self.calls = 0
{more}
    def forward(self, {arguments}):
        {take}
        {before}
        x = {scale}
        {cast}
        return {after}
"""

# Attention over [B, T, D] with four heads: q, k and v are {q}, {k}, {v}, each [B, 4, T, D / 4].
ATTENTION = [
    "F.scaled_dot_product_attention({q}, {k}, {v})", "F.scaled_dot_product_attention({q}, {k}, {v}, is_causal=True)",
    "scaled_dot_product_attention({q}, {k}, {v}, None, 0.0, True)",
    "F.scaled_dot_product_attention({q}, {k}, {v}, scale=0.3)",
    "F.scaled_dot_product_attention({q}, {k}, {v}, torch.ones({q}.shape[-2], {k}.shape[-2], dtype=torch.bool).tril())",
    "F.scaled_dot_product_attention({q}, {k}, {v}, torch.zeros(1, 1, {q}.shape[-2], {k}.shape[-2], dtype=torch.bool))",
    "F.scaled_dot_product_attention({q}, {k}, {v}, {k}[:, :1, :, 0].unsqueeze(1) > -1)",
    "F.scaled_dot_product_attention({q}, {k}, {v}, attn_mask=({q} @ {k}.mT).detach() * 0.1)",
    "F.scaled_dot_product_attention({q}, {k}, {v}, attn_mask={q} @ {k}.mT)",
    "F.scaled_dot_product_attention({q}, {k}[:, :2], {v}[:, :2], enable_gqa=True)",
    "F.scaled_dot_product_attention({q}, {k}[:, :1], {v}[:, :1])",
    "F.scaled_dot_product_attention({q}, {k}[:, :, :2], {v}[:, :, :2], is_causal=True)",
    "F.scaled_dot_product_attention(query={q}, key={k}, value={v}, dropout_p=0.0)",
    "F.scaled_dot_product_attention({q} * 30, {k} * 30, {v})",
    "F.scaled_dot_product_attention({q}[0], {k}[0], {v}[0])[None]", "softmax({q} @ {k}.mT * 0.4, dim=-1) @ {v}",
    "torch.softmax({q} @ {k}.mT, -1, torch.float32).to({v}.dtype) @ {v}",
    "F.softmax(({q} @ {k}.mT).masked_fill({k}[:, :1, :, 0].unsqueeze(1) > 0, -torch.inf), -1) @ {v}",
    "F.scaled_dot_product_attention({q}.contiguous(), {k}, {v}.contiguous(), is_causal=False, scale=None)",
    "F.scaled_dot_product_attention({q}, {k}, {v}[..., :1])",
    "F.scaled_dot_product_attention({q}, {q}, {q}, is_causal=True)",
]  # fmt: skip

# What may happen to q and k before.
TURNS = [
    "q, k = apply_rotary_pos_emb(q, k, *angles(q))",
    "cos, sin = angles(q); q, k = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1)",
    "q, k = turned(q, k, *angles(q))", "q, k = apply_rotary_pos_emb(q, k, *(t * 1.5 for t in angles(q)))",
    "q, k = (t.mT.mT for t in apply_rotary_pos_emb(q, k, *angles(q), 1))",
    "q, k = apply_rotary_pos_emb(k=k, q=q, cos=angles(q)[0], sin=angles(q)[1])",
    "q = apply_rotary_pos_emb(q, k, *angles(q))[0]; q.mul_(2)",
    "q, k = apply_rotary_pos_emb(q, k[:, :2], *angles(q)); k = k.repeat(1, 2, 1, 1)",
]  # fmt: skip

MERGES = [
    "o.transpose(1, 2).flatten(2)", "o.transpose(1, 2).reshape(o.shape[0], o.shape[2], -1)",
    "o.transpose(1, 2).contiguous().view(o.shape[0], o.shape[2], -1)", "o.permute(0, 2, 1, 3).flatten(-2)",
    "o.view(o.shape[0], -1).mean()", "o.clone().view(-1).sum()", "o.transpose(1, 2).view(o.shape[0], o.shape[2], -1)",
]  # fmt: skip

LOSS = [
    "F.cross_entropy({x}, {t})", "xent({x}, {t}, reduction='none')", "F.cross_entropy({x}, {t}, reduction='sum')",
    "F.cross_entropy({x}.nan_to_num(), {t}, ignore_index=1)", "F.cross_entropy({x}, {t}, label_smoothing=0.1)",
    "F.cross_entropy({x}, {t}, torch.ones({x}.shape[-1], dtype={x}.dtype))",
    "F.cross_entropy({x}, {x}.detach().softmax(-1))", "self.loss({x}, {t})", "self.loss(target={t}, input={x})",
    "F.nll_loss({x}.log_softmax(-1), {t})",
    "F.cross_entropy(input={x}.nan_to_num(), target={t}, weight=None, ignore_index=0)",
    "F.cross_entropy({x}.nan_to_num(), {t}.fill_(-100))", "F.cross_entropy({x}.T[None], {t}[None])",
    "F.cross_entropy({x}[0], {t}[0])", "F.cross_entropy({x}, {t} * 0 + 10_000)", "F.cross_entropy({x} * 100, {t})",
    "F.cross_entropy({x}.float(), {t}).to({x}.dtype)", "F.cross_entropy({x}, {t}.int())",
]  # fmt: skip

# Modules of torch that a swap knows or must leave alone; all map width {D} to width {D}.
MODULES = [
    "nn.Linear({D}, {D})", "nn.Linear({D}, {D}, bias=False)", "nn.LayerNorm({D})", "nn.LayerNorm({D}, eps=1e-3)",
    "nn.LayerNorm({D}, bias=False)", "nn.LayerNorm({D}, elementwise_affine=False)", "nn.LayerNorm(({D},))",
    "nn.RMSNorm({D})", "nn.RMSNorm({D}, eps=1e-5)", "nn.RMSNorm({D}, elementwise_affine=False)", "nn.GELU()",
    "nn.GELU(approximate='tanh')", "nn.Softmax(dim=-1)", "nn.Softmax(dim=0)", "nn.Softmax(-2)", "nn.SiLU()",
    "nn.Dropout(0.0)", "nn.Sequential(nn.Linear({D}, {D}), nn.GELU(), nn.Linear({D}, {D}))",
    "nn.Sequential(nn.LayerNorm({D}), nn.Softmax(-1))", "Louder({D}, {D})", "Named({D}, {D})",
    "Kept(nn.Linear({D}, {D}))", "Kept(nn.GELU())", "nn.Identity()", "nn.ReLU()",
    "nn.utils.parametrizations.weight_norm(nn.Linear({D}, {D}))",
    "nn.utils.parametrizations.orthogonal(nn.Linear({D}, {D}))", "torch.jit.script(nn.Linear({D}, {D}))",
    "nn.LazyLinear({D})", "copy.deepcopy(nn.Linear({D}, {D}))",
    "nn.TransformerEncoderLayer({D}, 2, 2 * {D}, 0.0, 'gelu', batch_first=True)", "nn.GLU() if False else nn.Tanh()",
    "nn.Bilinear({D}, {D}, {D}) if False else nn.Linear({D}, {D})",
    "nn.LayerNorm({D}, bias=True, elementwise_affine=True)",
]  # fmt: skip
