"""Random small models whose parts an optimization takes for one, and what a plan of ``kw.fix`` would say of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

HEADER = """\
import copy, io, pickle
import torch
import torch.fx.experimental.proxy_tensor
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn
"""

SHAPES = {
    1: [(2, 4, 6), (3, 4, 5)],
    2: [(2, 4, 5, 5), (1, 4, 4, 6)],
    3: [(2, 4, 3, 4, 3)],
    0: [(3, 8), (5, 8)],
    -1: [(2, 3, 8), (1, 5, 8)],
}
CONV_MORE = ["", "", ", bias=False", ", groups=2", ", padding_mode='circular'", ", bias=False, groups=4"]
NORM_MORE = ["", "", "", ", eps=1e-2", ", affine=False", ", momentum=None"]


@dataclass
class Model:
    """The text of a class ``Program``, the shape of what it takes, and the paths of its parts."""

    random: random.Random
    dims: int  # 1 to 3: images; 0: rows that batch norms take; -1: sequences
    shape: tuple[int, ...] = ()
    classes: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)  # lines of __init__
    methods: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)  # lines of forward
    pairs: list[tuple[str, str]] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)
    products: dict[str, bool] = field(default_factory=dict)  # path -> whether it has a bias
    norms: dict[str, bool] = field(default_factory=dict)  # path -> whether it has weights
    odd: list[str] = field(default_factory=list)  # encoder, parametrized
    returned: list[str] = field(default_factory=lambda: ["x"])
    count: int = 0

    def one(self, options: list[str]) -> str:
        return self.random.choice(options)

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    # ------------------------------------------------------------ parts

    def product(self, path: str) -> str:
        """The call that makes a convolution, or a linear, of this path."""
        if self.dims <= 0:
            more = self.one(["", "", ", bias=False"])
            text = f"nn.Linear(8, 8{more})"
        elif self.random.random() < 0.2:
            more = self.one(["", ", bias=False"])
            text = f"nn.ConvTranspose{self.dims}d(4, 4, 3, padding=1{more})"
        else:
            more = self.one(CONV_MORE)
            text = f"nn.Conv{self.dims}d(4, 4, 3, padding=1{more})"
        self.products[path] = "bias=False" not in more
        return text

    def norm(self, path: str) -> str:
        more = self.one(NORM_MORE)
        self.norms[path] = "affine" not in more
        return f"nn.BatchNorm{max(1, self.dims)}d({4 if self.dims > 0 else 8}{more})"

    def pair(self, product: str, norm: str) -> tuple[str, str]:
        made = self.product(product), self.norm(norm)
        self.pairs.append((product, norm))
        return made

    # ------------------------------------------------------------ writings of a product and its norm

    def attributes(self) -> tuple[str, str]:
        c, b = self.name("c"), self.name("b")
        product, norm = self.pair(c, b)
        self.made += [f"self.{c} = {product}", f"self.{b} = {norm}"]
        return c, b

    def nested(self) -> None:
        c, b = self.attributes()
        self.body.append(self.one(["x = F.relu(self.{b}(self.{c}(x)))", "x = self.{b}(self.{c}(x))"]).format(c=c, b=b))

    def statements(self) -> None:
        c, b = self.attributes()
        self.body += [f"y = self.{c}(x)", f"y = self.{b}(y)", "x = F.relu(y) + x"]

    def two_names(self) -> None:
        c, b = self.attributes()
        self.body += [f"y = self.{c}(x)", f"z = self.{b}(y)", "x = z"]

    def kept(self) -> None:
        c, b = self.attributes()
        self.body += [f"y = self.{c}(x)", "self.kept = y", f"x = self.{b}(y)"]

    def skipped(self) -> None:
        c, b = self.attributes()
        self.body += [f"y = self.{c}(x)", f"x = y if skip else self.{b}(y)"]

    def cloned(self) -> None:
        c, b = self.attributes()
        self.body += [f"y = self.{c}(x)", f"x = self.{b}(y.clone() if skip else y)"]

    def method(self) -> None:
        c, b = self.attributes()
        stage = self.name("stage")
        self.methods += [f"def {stage}(self, x):", f"    return self.{b}(self.{c}(x))"]
        self.body.append(f"x = self.{stage}(x)")

    def branches(self) -> None:
        (c, b), (d, e) = self.attributes(), self.attributes()
        self.body += [f"y = self.{c}(x)", f"z = self.{d}(x)", f"x = self.{b}(y) + self.{e}(z)"]

    def sequential(self) -> None:
        s = self.name("s")
        kind = "nn.Sequential"
        if self.random.random() < 0.3:
            kind = self.name("Chain")
            self.classes.append(f"class {kind}(nn.Sequential):\n    pass")
        product, norm = self.pair(f"{s}.0", f"{s}.1")
        self.made.append(f"self.{s} = {kind}({product}, {norm}, nn.ReLU())")
        self.body.append(f"x = self.{s}(x)")

    def block(self) -> None:
        s, kind = self.name("s"), self.name("Block")
        product, norm = self.pair(f"{s}.conv", f"{s}.norm")
        lines = [
            f"class {kind}(nn.Module):", "    def __init__(self):", "        super().__init__()",
            f"        self.conv = {product}", f"        self.norm = {norm}", "", "    def forward(self, x):",
            "        return F.relu(self.norm(self.conv(x)))",
        ]  # fmt: skip
        self.classes.append("\n".join(lines))
        self.made.append(f"self.{s} = {kind}()")
        self.body.append(f"x = self.{s}(x)")

    def loop(self) -> None:
        s = self.name("s")
        one, two = self.pair(f"{s}.0.0", f"{s}.1.0"), self.pair(f"{s}.0.1", f"{s}.1.1")
        lists = [f"nn.ModuleList([{a}, {b}])" for a, b in zip(one, two, strict=True)]
        self.made.append(f"self.{s} = nn.ModuleList([{', '.join(lists)}])")
        self.body += [f"for product, norm in zip(*self.{s}):", "    x = norm(product(x))"]

    # ------------------------------------------------------------ products of one input

    def linears(self, letters: str) -> list[str]:
        names = [self.name(letter) for letter in letters]
        more = self.one(["", "", ", bias=False"])
        for name in names:
            self.made.append(f"self.{name} = nn.Linear(8, 8{more})")
            self.products[name] = not more
        self.groups.append(names)
        if self.random.random() < 0.15:
            tied = self.name("tied")
            self.made += [f"self.{tied} = nn.Linear(8, 8, bias=False)", f"self.{tied}.weight = self.{names[0]}.weight"]
            self.body.append(f"x = self.{tied}(x)")
        return names

    def attention(self) -> None:
        names = self.linears("qkv")
        q, k, v = (f"self.{name}(x)" for name in names)
        how = self.random.randrange(5)
        if how == 0:
            self.body.append(f"q, k, v = {q}, {k}, {v}")
        elif how == 1:
            self.body += [f"q = {q}", f"k = {k}", f"v = {v}"]
        elif how == 2:
            self.body += [f"q = {q}", "q = torch.tanh(q)", f"k = {k}", f"v = {v} * 2"]
        elif how == 3:
            self.body += [f"q, k, v = {q}.view(-1, 8).view(x.shape), {k}, {v}"]
        else:
            self.body += [f"q, k, v = {q}, {k}, {v}"]
            self.returned += ["q", "k", "v"]
        self.body.append("x = x + torch.softmax(q * k, -1) * v")

    def gated(self) -> None:
        gate, up = self.linears("gu")
        down = self.name("d")
        self.made.append(f"self.{down} = {self.product(down)}")
        self.body.append(f"x = self.{down}(F.silu(self.{gate}(x)) * self.{up}(x))")

    # ------------------------------------------------------------ others

    def plain(self) -> None:
        c = self.name("c")
        self.made.append(f"self.{c} = {self.product(c)}")
        self.body.append(f"x = self.{c}(x)")

    def parametrized(self) -> None:
        c = self.name("w")
        kind = "nn.Linear(8, 8)" if self.dims <= 0 else f"nn.Conv{self.dims}d(4, 4, 3, padding=1)"
        self.made.append(f"self.{c} = nn.utils.parametrizations.weight_norm({kind})")
        self.odd.append(c)
        self.body.append(f"x = self.{c}(x)")

    def encoder(self) -> None:
        c = self.name("e")
        self.made.append(f"self.{c} = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)")
        self.odd.append(c)
        self.body.append(f"x = self.{c}(x)")

    def layer_norm(self) -> None:
        c = self.name("n")
        self.made.append(f"self.{c} = nn.LayerNorm(8)")
        self.body.append(f"x = F.gelu(self.{c}(x))")

    # ------------------------------------------------------------ the whole

    def text(self) -> str:
        first = next(iter(self.products), "")
        features = f"{written('self', first)}(x)" if first else "x"
        made = [f"        {line}" for line in self.made]
        methods = [f"    {line}" for line in self.methods]
        lines = [
            "class Program(nn.Module):", "    def __init__(self):", "        super().__init__()", *made, "", *methods,
            "    def features(self, x):", f"        return F.relu({features})", "",
            "    def forward(self, x, skip=False):", *(f"        {line}" for line in self.body),
            f"        return {', '.join(self.returned)}",
        ]  # fmt: skip
        return "\n\n".join([*self.classes, "\n".join(lines)]) + "\n"


GENERATES = """
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=32, bos_token_id=None, eos_token_id=None, pad_token_id=0,
)


class Program(LlamaForCausalLM):
    def __init__(self):
        super().__init__(CONFIG)

    def features(self, x):
        return self.generate(x, max_new_tokens=3, do_sample=False, output_scores=True, return_dict_in_generate=True)
"""


def generating(random: random.Random) -> Model:
    """One that generates tokens, of transformers' own."""
    model = Model(random, -2, (2, 3))
    model.products = dict.fromkeys((f"model.layers.0.self_attn.{name}_proj" for name in "qkv"), False)
    model.groups = [list(model.products)]
    model.products["lm_head"] = False
    return model


def written(owner: str, path: str) -> str:
    """The expression of a part."""
    steps = (f"[{step}]" if step.isdigit() else f".{step}" for step in path.split(".") if step)
    return owner + "".join(steps)


def drawn(random: random.Random) -> Model:
    dims = random.choice([1, 2, 2, 2, 3, 0, 0, -1, -1, -1])
    model = Model(random, dims, random.choice(SHAPES[dims]))
    pairs: list[Callable[[], None]] = [
        model.nested, model.nested, model.statements, model.two_names, model.kept, model.skipped, model.cloned,
        model.method, model.branches, model.sequential, model.sequential, model.block, model.loop,
    ]  # fmt: skip
    groups = [model.attention, model.attention, model.gated]
    others = [model.plain, model.parametrized]
    first = {-1: groups, 0: [*groups, *pairs]}.get(dims, pairs)
    more = {-1: [*groups, *others, model.encoder, model.layer_norm], 0: [*groups, *pairs, *others, model.layer_norm]}
    random.choice(first)()
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        random.choice(more.get(dims, [*pairs, *others]))()
    return model
