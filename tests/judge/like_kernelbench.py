"""Problems as KernelBench writes them, ours: sound ones, and ones that are not worth a score, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

__all__ = ["SOUND", "UNSOUND", "Written"]


@dataclass(frozen=True)
class Written:
    """``inputs`` and ``init`` are what the two functions return; ``reason`` is a word of what the problem check has to
    say."""

    forward: str
    inputs: str
    made: str = ""  # the body of __init__
    takes: str = ""  # its arguments
    init: str = ""
    sizes: str = ""
    takes_forward: str = "x"
    reason: str = ""

    @property
    def text(self) -> str:
        body = indent(dedent(self.made).strip() or "pass", " " * 8)
        forward = indent(dedent(self.forward).strip(), " " * 8)
        return (
            "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
            "class Model(nn.Module):\n"
            f"    def __init__(self{', ' if self.takes else ''}{self.takes}):\n        super().__init__()\n{body}\n\n"
            f"    def forward(self, {self.takes_forward}):\n{forward}\n\n\n"
            f"{dedent(self.sizes).strip()}\n\n\n"
            f"def get_inputs():\n    return [{self.inputs}]\n\n\n"
            f"def get_init_inputs():\n    return [{self.init}]\n"
        )


SOUND = {
    "dense_relu": Written(
        "return torch.relu(self.dense(x))", "torch.randn(rows, wide)", "self.dense = nn.Linear(wide, narrow)",
        "wide, narrow", "wide, narrow", "rows = 128\nwide = 512\nnarrow = 384",
    ),
    "row_softmax": Written("return torch.softmax(x, dim=1)", "torch.randn(256, 1024)"),
    "row_log_softmax": Written("return F.log_softmax(x, dim=-1)", "8 * torch.randn(128, 777)"),
    "layer_norm": Written(
        "return self.norm(x)", "torch.rand(rows, wide)", "self.norm = nn.LayerNorm(wide)", "wide", "wide",
        "rows = 256\nwide = 768",
    ),
    "rms_norm": Written(
        "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale", "torch.randn(200, 640)",
        "self.scale = nn.Parameter(torch.rand(640) + 0.5)",
    ),
    "conv_norm_relu": Written(
        "return F.relu(self.norm(self.conv(x)))", "torch.randn(4, 16, 28, 28)",
        "self.conv = nn.Conv2d(16, 32, 3, padding=1)\nself.norm = nn.BatchNorm2d(32)",
    ),
    "transposed_conv": Written(
        "return torch.clamp(self.conv(x) + self.shift, 0.0, 1.0)", "torch.randn(2, 24, 20, 20)",
        "self.conv = nn.ConvTranspose2d(24, 12, 3, stride=2)\nself.shift = nn.Parameter(torch.randn(12, 1, 1))",
    ),
    "depthwise": Written(
        "return F.hardswish(self.conv(x))", "torch.rand(4, 32, 40, 40)",
        "self.conv = nn.Conv2d(32, 32, 5, groups=32, bias=False)",
    ),
    "feed_forward": Written(
        "return x + self.down(F.gelu(self.up(x)))", "torch.randn(64, 256)",
        "self.up = nn.Linear(256, 1024)\nself.down = nn.Linear(1024, 256)",
    ),
    "heads": Written(
        """
        q, k, v = (t.view(2, 96, 4, 32).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1)) * 32**-0.5
        scores = scores.masked_fill(self.later, float("-inf"))
        return (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(2, 96, 128)
        """,
        "torch.randn(2, 96, 128)",
        'self.qkv = nn.Linear(128, 384)\nself.register_buffer("later", torch.ones(96, 96).triu(1).bool())',
    ),
    "fused_heads": Written(
        "return F.scaled_dot_product_attention(x, y, z, is_causal=True)",
        "torch.randn(2, 4, 64, 32), torch.randn(2, 4, 64, 32), torch.randn(2, 4, 64, 32)",
        takes_forward="x, y, z",
    ),
    "token_loss": Written(
        "return F.cross_entropy(x, y)", "torch.randn(512, 1000), torch.randint(0, 1000, (512,))", takes_forward="x, y"
    ),
    "running_sum": Written("return torch.cumsum(x, dim=1)", "torch.randn(64, 3000)"),
    "places": Written("return torch.argmax(x, dim=1)", "torch.randn(256, 512)"),
    "group_norm_silu": Written(
        "return F.silu(self.norm(x))", "torch.randn(4, 32, 24, 24)", "self.norm = nn.GroupNorm(8, 32)"
    ),
    "deep_product": Written("return x @ y", "torch.rand(64, 8192), torch.rand(8192, 48)", takes_forward="x, y"),
    "gated_cell": Written(
        "return self.cell(x)[0]", "torch.randn(12, 8, 64)", "self.cell = nn.GRU(64, 96)"
    ),
    "pooled": Written("return F.max_pool2d(F.avg_pool2d(x, 2), 3, stride=2)", "torch.randn(8, 16, 44, 44)"),
    "three_layers": Written(
        "return self.net(x)", "torch.randn(48, 300)",
        "self.net = nn.Sequential(nn.Linear(300, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 50))",
    ),
    "distance": Written(
        "return (x - y).pow(2).sum(1).sqrt().mean()", "torch.randn(300, 700), torch.randn(300, 700)",
        takes_forward="x, y",
    ),
    "half_softmax": Written("return torch.softmax(x * 2.5, dim=-1)", "torch.randn(128, 512).half()"),
    "written_into": Written(
        "out = torch.zeros_like(x)\nout[:, 1:] = x[:, :-1]\nout.mul_(0.3)\nreturn out + x", "torch.randn(256, 1024)"
    ),
    "mish_norms": Written(
        "x = self.conv(x)\nx = x * torch.tanh(F.softplus(x))\nreturn self.norm(x)", "torch.randn(3, 8, 32, 32)",
        "self.conv = nn.Conv2d(8, 16, 3)\nself.norm = nn.InstanceNorm2d(16)",
    ),
    "upsampled": Written(
        'return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)', "torch.randn(4, 8, 24, 24)"
    ),
    "normed_columns": Written("return x / torch.norm(x, p=2, dim=1, keepdim=True)", "torch.randn(128, 900)"),
}  # fmt: skip

UNSOUND = {
    "one_class": Written("return torch.softmax(self.dense(x), dim=1)", "torch.randn(1024, 64)",
        "self.dense = nn.Linear(64, 1)", reason="constant"),
    "own_mean": Written("x = x.amax(1, keepdim=True)\nreturn F.gelu(x - x.mean(1, keepdim=True))",
        "torch.randn(512, 300)", reason="zeros"),
    "closed_clamp": Written("return torch.clamp(torch.minimum(x, torch.zeros(())), min=0.0, max=1.0)",
        "torch.randn(256, 500)", reason="zeros"),
    "mean_of_normed": Written("return self.norm(x).mean((1, 2, 3))", "torch.randn(16, 32, 16, 16)",
        "self.norm = nn.GroupNorm(4, 32)", reason="rounding"),
    "unused": Written("return torch.sigmoid(x)", "torch.randn(256, 400), torch.randn(256, 400)",
        takes_forward="x, y", reason="independent"),
    "dead_head": Written("hidden = torch.tanh(self.body(x))\nunused = self.head(hidden)\nreturn hidden",
        "torch.randn(128, 256)", "self.body = nn.Linear(256, 512)\nself.head = nn.Linear(512, 512)", reason="dead"),
    "twice_pooled": Written("x = self.conv(x).mean((2, 3), keepdim=True)\nreturn x.mean((2, 3), keepdim=True)",
        "torch.randn(8, 16, 24, 24)", "self.conv = nn.Conv2d(16, 32, 3)", reason="redundant"),
    "clamped_tanh": Written("return torch.clamp(torch.tanh(x), -1.0, 1.0)", "torch.randn(256, 400)",
        reason="redundant"),
    "tiny": Written("return torch.relu(x) * 2", "torch.rand(4, 4, 4, 4) - 0.5", reason="launch"),
    "saturated": Written("return torch.sigmoid(x * 400)", "torch.rand(256, 400) + 1", reason="constant"),
    "all_negative": Written("return torch.relu(-x - 1)", "torch.rand(256, 400)", reason="zeros"),
    "already_positive": Written("return torch.relu(x)", "torch.rand(256, 400)", reason="input"),
    "drops": Written("return F.dropout(torch.exp(x), 0.3, training=True)", "torch.randn(256, 400)",
        reason="random"),
    "overflows": Written("return torch.exp(x).sum(1)", "100 * torch.rand(256, 400)", reason="finite"),
}  # fmt: skip
