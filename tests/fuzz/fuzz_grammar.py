"""Random programs: a module's source, and the lines that make it, change it and call it, before a swap and after."""

from __future__ import annotations

import random
import textwrap
from dataclasses import dataclass, field

import fuzz_blocks as blocks

KINDS = ["plain"] * 6 + [
    "transposed", "strided", "negated", "conjugate", "expanded", "offset", "nan", "infinite", "huge", "tiny", "zero",
    "parameter", "constant",
]  # fmt: skip


@dataclass(frozen=True)
class Source:
    """The text of a module, and lines that are run one at a time: those up to ``swapped`` before the swap."""

    text: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        own = self.text.removeprefix(blocks.HEADER)
        return "\n".join([*own.strip().splitlines(), "", *(f">>> {line}" for line in self.lines)])


@dataclass
class Builder:
    random: random.Random
    width: int = 8
    rank: int = 3
    classes: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)  # lines of __init__
    body: list[str] = field(default_factory=list)  # lines of forward
    values: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)  # names of the attributes that are modules
    norms: list[str] = field(default_factory=list)

    def one(self, options: list[str]) -> str:
        return self.random.choice(options)

    def chance(self, percent: int) -> bool:
        return self.random.randint(0, 99) >= 100 - percent

    def value(self) -> str:
        return self.one(self.values[-3:])

    def store(self, expression: str) -> None:
        name = f"v{len(self.body)}"
        self.body.append(f"{name} = {expression}")
        self.values.append(name)

    # ------------------------------------------------------------ statements

    def unary(self) -> None:
        self.store(self.one(blocks.UNARY).format(x=self.value(), D=self.width))

    def binary(self) -> None:
        self.store(self.one(blocks.BINARY).format(x=self.value(), y=self.value(), D=self.width))

    def write(self) -> None:
        text = self.one(blocks.WRITES).format(x=self.value(), y=self.value(), D=self.width)
        self.body += text.split("~")

    def write_input(self) -> None:
        self.body.append(self.one(["x.mul_(2)", "x[..., 0] = 1", "x.add_(y)", "doubled(x)", "x.copy_(F.gelu(x))"]))

    def module(self) -> None:
        name = f"m{len(self.modules)}"
        self.made.append(f"self.{name} = {self.one(blocks.MODULES).format(D=self.width)}")
        self.modules.append(name)
        how = ["self.{n}({x})", "self.{n}({x})", "self.{n}(input={x})", "self.{n}.forward({x})", "self.{n}({x}) + {x}"]
        how += ["F.gelu(self.{n}({x}))", "F.silu(self.{n}({x})) * {x}", "type(self.{n}).forward(self.{n}, {x})"]
        self.store(self.one(how).format(n=name, x=self.value()))

    def norm(self) -> None:
        name = f"n{len(self.norms)}"
        pick = self.one
        argument = pick(blocks.NORM_ARGUMENT) if self.chance(30) else "x"
        before = pick(blocks.NORM_BEFORE)
        # Few norms have many quirks: then each quirk is met alone, where a recogniser must see it.
        square, mean, scale, after = (
            pick(options) if self.chance(25) else options[0]
            for options in (blocks.NORM_SQUARE, blocks.NORM_MEAN, blocks.NORM_SCALE, blocks.NORM_AFTER)
        )
        cast = "x = x.to(kind)" if "kind" in before and self.chance(80) else "pass"
        take = ["x = hidden" if argument == "hidden" else "pass", "x = x * scale"]["scale" in argument]
        self.classes.append(
            blocks.NORM.format(
                name=f"Norm{len(self.norms)}", D=self.width, eps_name="eps", eps=pick(["1e-6", "1e-5", "1e-2"]),
                arguments=argument, before=before or "pass", take=take, cast=cast, more="",
                scale=scale.format(m=mean.format(s=square)), after=after,
            )
        )  # fmt: skip
        self.made.append(f"self.{name} = Norm{len(self.norms)}()")
        self.norms.append(name)
        calls = ["self.{n}({x})"] * 4 + [f"self.{{n}}({argument.split(',')[0]}={{x}})"]
        calls += ["self.{n}({x}, 2.0)"] if "scale" in argument or "rest" in argument else []
        self.store(pick(calls).format(n=name, x=self.value()))

    def attention(self) -> None:
        if self.rank != 3:
            return self.unary()
        heads = [f"{self.value()}.unflatten(-1, (4, -1)).transpose(1, 2)" for _ in range(3)]
        self.body.append(f"q, k, v = {', '.join(heads)}")
        if self.chance(40):
            self.body.append(self.one(blocks.TURNS))
        self.body.append(f"o = {self.one(blocks.ATTENTION).format(q='q', k='k', v='v')}")
        self.store(f"{self.one(blocks.MERGES)} + {self.value()}")

    def loss(self) -> None:
        self.body.append(f"logits = {self.value()}.reshape(-1, {self.width})")
        self.body.append(f"target = torch.arange(logits.shape[0]) % {self.width}")
        self.body.append(f"loss = {self.one(blocks.LOSS).format(x='logits', t='target')}")
        self.store(f"{self.value()} + loss.mean()")

    # ------------------------------------------------------------ the whole

    def program(self) -> Source:
        self.width = self.random.choice([8, 16, 4, 32, 12, 20])
        self.rank = self.random.choice([3, 3, 2, 4])
        self.values = ["x", "x", "y"]
        statements = [self.unary] * 4 + [self.binary] * 2 + [self.write] * 2 + [self.module] * 3 + [self.norm] * 3
        statements += [self.attention] * 3 + [self.loss]
        for _ in range(self.random.randint(1, 6)):
            self.random.choice(statements)()
        if self.chance(8):
            self.write_input()
        text = blocks.HEADER + "\n\n" + "\n\n".join(textwrap.dedent(c).strip() for c in [*self.classes, self._whole()])
        return Source(text + "\n", tuple(self.scenario()))

    def _whole(self) -> str:
        act = self.one(["nn.SiLU()", "F.silu", "nn.GELU()", "MySiLU()", "Leaky()", "F.gelu", "nn.SiLU(inplace=True)"])
        result = self.values[-1]
        results = [result] * 5 + [f"({result}, {self.values[-2]})", f"{{'a': {result}}}", f"{result}.sum()"]
        indent = " " * 8
        decorator = self.one([""] * 8 + ["    @torch.no_grad()\n", "    @functools.wraps(torch.relu)\n"])
        lines = [
            "class Program(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            f"        self.act = {act}",
            "        self.gate = nn.SiLU()",
            "        self.held = F.gelu",
            "        self.table = {'act': F.gelu}",
            "        self.loss = nn.CrossEntropyLoss()",
            "        self.register_buffer('running', torch.ones(()))",
            "        self.total = 0",
            *(indent + line for line in self.made),
            "",
            "    def method(self, x):",
            "        return F.gelu(x) + x",
            "",
            "    def wipe(self, x):",
            "        x.zero_()",
            "        return x + 1",
            "",
            "    @staticmethod",
            "    def static(x):",
            "        return F.gelu(x, approximate='tanh')",
            "",
            "    @classmethod",
            "    def shared(cls, x):",
            "        return F.softmax(x, -1)",
            "",
            "    @property",
            "    def prop(self):",
            "        return F.gelu(torch.ones(())).item()",
            "",
            f"{decorator}    def forward(self, x, y=None):",
            "        y = x * 0.5 + 0.1 if y is None else y",
            *(indent + line for line in self.body),
            f"        return {self.one(results)}",
        ]
        return "\n".join(lines)

    # ------------------------------------------------------------ what happens to it

    def shape(self) -> tuple[int, ...]:
        lead = [self.random.choice([2, 1, 3, 5]) for _ in range(self.rank - 1)]
        if self.chance(6):
            lead[self.random.randrange(len(lead))] = 0
        return (*lead, self.width)

    def tensor(self) -> str:
        kind = self.one(KINDS)
        grad = ", grad=True" if self.chance(50) else ""
        return f"tensor({self.shape()}, {kind!r}{grad})"

    def scenario(self) -> list[str]:
        lines = [f"model = build(Program, {self.one(['float32'] * 6 + ['bfloat16', 'float16', 'float64'])!r})"]
        lines += [self.change() for _ in range(self.random.choice([0, 0, 1, 2]))]
        lines.append("swap(model)")
        for _ in range(self.random.choice([1, 2, 3])):
            lines.append(f"x = {self.tensor()}")
            lines.append(self.call())
            if self.chance(60):
                lines.append(self.change())
                lines.append(self.call())
        if self.chance(30):
            lines += ["undo()", self.call()]
            lines += ["swap(model)", self.call()] if self.chance(40) else []
        return lines

    def call(self) -> str:
        return self.one(CALLS).format(tensor=self.tensor(), D=self.width)

    def change(self) -> str:
        line = self.one(CHANGES)
        if "{m}" in line and not self.modules:
            line = "model.act = F.gelu"
        if "{n}" in line and not self.norms:
            line = "model.method = lambda x: x * 3"
        return line.format(
            m=self.one(self.modules or ["act"]), o=self.one(self.modules or ["act"]), n=self.one(self.norms or ["act"]),
            D=self.width,
        )  # fmt: skip


CALLS = ["call(model, x)"] * 8 + [
    "call(model, x=x)", "call(model, x, {tensor})", "call(model, x, y=x)", "call(model.forward, x)",
    "with torch.no_grad(): call(model, x)", "with torch.inference_mode(): call(model, x.detach().clone())",
    "with torch.autocast('cpu', torch.bfloat16): call(model, x)", "call(model, {tensor})", "call(model, x[:1])",
    "call(model, x[:0])", "call(model, x[..., :1])", "call(model, x.transpose(0, 1))", "call(model, x.double())",
    "call(model, x[0])", "call(model, x[None])", "call(model)", "call(model, None)", "call(model, x, x, x)",
    "call(model, torch._neg_view(x))", "call(model, x.T)", "call(model, x.to(torch.bfloat16))",
    "call(model, x.long())", "call(lambda t: torch.utils.checkpoint.checkpoint(model, t, use_reentrant=False), x)",
    "call(lambda t: torch.utils.checkpoint.checkpoint(model, t, use_reentrant=True), x)",
    "call(copy.deepcopy(model), x)", "call(pickle.loads(pickle.dumps(model)), x)", "call(copy.copy(model), x)",
    "with patched(F, 'gelu', torch.tanh): call(model, x)", "with patched(F, 'silu', torch.tanh): call(model, x)",
    "with patched(F, 'softmax', lambda x, *a, **k: x * 2): call(model, x)",
    "with patched(F, 'linear', lambda x, w, b=None: x @ w.T): call(model, x)",
    "with patched(F, 'layer_norm', lambda x, *a, **k: x * 2): call(model, x)",
    "with torch.autograd.set_detect_anomaly(True): call(model, x)",
    "call(lambda t: torch.func.functional_call(model, {{k: p * 2 for k, p in model.named_parameters()}}, (t,)), x)",
    "with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t): call(model, x)",
    "call(lambda t: torch.func.jvp(lambda u: total(model(u)), (t,), (torch.ones_like(t),)), x.detach())",
    "call(lambda t: torch.func.grad(lambda u: total(model(u)))(t), x.detach())",
    "call(lambda t: torch.func.vjp(lambda u: total(model(u)), t)[1](torch.ones((), dtype=t.dtype)), x.detach())",
    "call(torch.func.vmap(model), x)", "twice(model, x)",
    "call(lambda t: torch.func.jacfwd(lambda u: total(model(u)))(t), x.detach())",
]  # fmt: skip

CHANGES = [
    "model.eval()", "model.train()", "model.requires_grad_(False)", "descend(model)", "model = copy.deepcopy(model)",
    "model = pickle.loads(pickle.dumps(model))", "model.load_state_dict(copy.deepcopy(model.state_dict()))",
    "SCALE = 2.0", "gelu = torch.tanh", "EPS = 0.5", "softmax = lambda x, dim: x * 2", "F = fn", "through = doubled",
    "activated = lambda x, kind='none': x * 2", "normed = lambda x, weight: x * 2", "silu = torch.tanh",
    "model.act = F.gelu", "model.act = nn.SiLU()", "model.act = lambda x: x * 0 + 1", "model.act = torch.tanh",
    "model.act.register_forward_hook(lambda m, a, out: out * 2)",
    "model.gate.register_forward_pre_hook(lambda m, a: a[0] * 2)", "model.gate = nn.Tanh()",
    "model.gate.forward = torch.tanh", "model.table['act'] = torch.tanh", "model.method = lambda x: x * 3",
    "model.static = lambda x: x * 3", "Program.method = lambda self, x: x * 3",
    "Program.static = staticmethod(lambda x: x * 3)", "Program.shared = classmethod(lambda cls, x: x * 3)",
    "Program.forward = lambda self, x, y=None: x * 3", "model.forward = lambda x, y=None: x * 3",
    "model.wipe = lambda x: x * 2", "Kept.forward = lambda self, x: x * 3", "Leaky.forward = lambda self, x: x * 3",
    "MySiLU.forward = lambda self, x: x * 3", "model.register_forward_hook(lambda m, a, out: total(out) * 2)",
    "model.{m}.register_forward_hook(lambda m, a, out: out * 2)",
    "model.{m}.register_forward_pre_hook(lambda m, a: a[0] * 2)",
    "model.{m}.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))", "model.{m} = model.{o}",
    "model.{m}.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))", "model.{m}.weight = model.{o}.weight",
    "model.{m}.weight.data.mul_(2)", "model.{m}.weight.data = model.{m}.weight.data * 2", "model.{m}.bias = None",
    "model.{m}.weight = nn.Parameter(model.{m}.weight.detach() * 2)", "model.{m}.eps = 0.5", "model.{m}.dim = 0",
    "model.{m}.approximate = 'tanh'", "model.{m} = new(nn.Linear({D}, {D}))", "model.{m} = nn.Tanh()",
    "model.{m}.forward = lambda x: x * 3", "model.{m}.forward = type(model.{m}).forward.__get__(model.{o})",
    "type(model.{m}).extra = 1", "del model.{m}.bias", "model.{m}.bias = nn.Parameter(new(torch.ones(1)))",
    "model.{m}.weight = None", "model.{m}.normalized_shape = ({D} // 2,)", "model.{m}.inner = nn.Tanh()",
    "nn.utils.parametrize.register_parametrization(model.{m}, 'weight', AsHalf())", "model.{m}.to(torch.bfloat16)",
    "model.{n}.eps = 0.5", "model.{n}.gain = 2.0", "model.{n}.weight.data.mul_(2)",
    "type(model.{n}).forward = lambda self, x: x * 3",
    "model.{n}.weight = nn.Parameter(model.{n}.weight.detach() * 2)",
    "model.{n}.register_forward_hook(lambda m, a, out: out * 2)", "model.{n}.forward = lambda x: x * 3",
    "model.{n}.double()", "model.{n}.eps = 1", "model.{n}.eps = torch.tensor(0.5)",
    "nn.utils.parametrize.register_parametrization(model.{n}, 'weight', OnePlus())", "del model.{n}.eps",
    "model.to(torch.bfloat16)", "model.double()", "model.float()", "torch.set_num_threads(2)",
    "model.apply(lambda m: None)", "nn.utils.parametrize.register_parametrization(model.{m}, 'weight', OnePlus())",
    "model.share_memory()",
]  # fmt: skip
