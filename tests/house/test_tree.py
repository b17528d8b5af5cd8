"""The house keeps its order: no orphans, one home for each op, names from the grammar, files of a size to read.

Every rule is a function from a tree to a list of complaints. It is run on this repository, where it must find none,
and on a small tree that breaks it, where it must find that.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from source_facts import source_facts
from typer.main import get_command

from kernelworks.build.cpp import TARGETS
from kernelworks.cli import app

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/kernelworks"

MOST_LINES = 500
WRITTEN = "Written by `make docs`: changes are lost."  # in the first line of a file that nobody reads in one go
MOST_FUNCTION_LINES = 80  # what is longer than this is two functions
MOST_KERNEL_LINES = 100  # of a Triton kernel: one algorithm, whose parts share what it holds in registers
BANNED_WORDS = {
    "util", "utils", "helper", "helpers", "common", "misc", "fast", "faster", "optimized", "optimised", "v2", "v3",
    "new", "old", "tmp", "temp", "stuff", "impl",
}  # fmt: skip
BANNED_MARKS = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error")

TOP = {
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml", "constraints.txt",
    "mkdocs.yml", ".gitignore", ".pre-commit-config.yaml", ".ci/run", "action.yml", "src/pytest_kernelworks.py",
}  # fmt: skip
FOLDERS = {  # folder -> what may lie in it, as a pattern of the path below it
    "src/kernelworks": r".*",
    "tests": r"conftest\.py|\w+/\w+\.py|(descend|diagnose|profile)/traces/[\w.]+\.(json\.gz|csv)"
    r"|report/records/[\w-]+\.json|learn/programs/\w+\.cu",
    "examples": r"\w+\.py",
    "exercises": r"[\w-]+/(exercise\.toml|README\.md|reference\.py|(start|solution|wrong/\w+)\.(cpp|cu|py))",
    "benchmarks": r"(programs/)?\w+\.py|kernelbench_calls\.toml|results/[\w.-]+\.json",
    "docs": r"((reference|explanation|how-to)/)?[\w-]+\.md|pictures/[\w-]+\.(svg|png)|assets/[\w-]+\.(css|js)",
    "ladders": r"[\w-]+/.*",
    "tools": r"\w+\.py",
}
OP_PACKAGE_FILES = {"__init__.py", "contract.py", "mutants.py", "scalar.cpp", "simd.cpp", "README.md"}
IN_PYTHON = {name for name in OP_PACKAGE_FILES if not name.endswith(".cpp")}
OF_A_TEMPLATE = {
    "__init__.py",
    "contract.py",
    "README.md",
}  # beside C++, of which a template says what; mutants are given
OF_TEMPLATES = {
    "collective.cpp", "pointwise.cpp", "recurrent.cpp", "rowwise.cpp", "pairwise.cpp", "scan.cpp", "step.cpp"
}  # fmt: skip
# An op package whose kernels take too long to compile together splits them: few queries, and gradients.
OP_PACKAGE_MAY_HOLD = (
    OP_PACKAGE_FILES
    | {
        "tuning.toml",
        "times.toml",
        "triton.py",
        "int8.cpp",
        "chunked.cpp",
        "sm90.cu",
        "sm90_backward.cu",
        "sm90_backward_wide.cu",
        "sm90_decode.cu",
        "sm90_middle.cu",
        "decode.cpp",
        "backward.cpp",
    }
    | OF_TEMPLATES
    | {f"{target}.cpp" for target in TARGETS}
)
# Modules that nothing imports because something else starts them.
STARTED = {
    "__init__", "__main__", "cli", "verify.worker", "verify.triton_interpreter", "verify.resources", "verify.sanitizer",
    "learn.triton_compiling", "learn.worker", "profile.ncu_target", "climb.worker", "climb.single_launch",
    "judge.roles.spawn", "search.verification_worker", "diagnose.fix.compile_worker", "diagnose.fix.plan_worker",
    "integrations.notebook", "integrations.speed", "integrations.trainer",  # by IPython, pytest and a user
    "nn.validate", "report.expectations", "report.picture", "report.programs",  # asked for by name, and by tools/
}  # fmt: skip
# Imported when the op package's kernel is loaded, by what names them there, or by bench.
KERNEL_MODULES = {
    "triton.py": ("triton_kernel(", "TEMPLATE.op(", "TABLE.op("), "sm90.py": ("cuda_kernel(",),
    "triton_chunked.py": ('module="triton_chunked"',), "triton_backward.py": ('module="triton_backward"',),
    "triton_depthwise.py": ('module="triton_depthwise"',), "triton_split.py": ('module="triton_split"',),
    "triton_columns.py": ('module="triton_columns"', "TABLE.op("),
    "searched.py": ("searched_kernel(",), "baselines.py": ("CONTRACT",),
}  # fmt: skip
DATA = {".toml", ".json", ".css", ".js", ".md"}


def tree(root: Path) -> list[str]:
    """The files of the tree: those that git knows or would add, else all."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return sorted(name for name in set(listed) if (root / name).is_file())
    return sorted(
        p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    )


def op_packages(files: list[str]) -> dict[str, set[str]]:
    """Room folder -> names of the files in it."""
    found: dict[str, set[str]] = {}
    for name in files:
        match = re.fullmatch(rf"({PACKAGE}/ops/\w+/\w+)/(.+)", name)
        if match:
            found.setdefault(match[1], set()).add(match[2])
    return found


# ---------------------------------------------------------------- the rules


def strays(root: Path, files: list[str]) -> list[str]:
    """Files that lie where nothing of their kind belongs."""
    wrong = []
    for name in files:
        folder = next((f for f in FOLDERS if name.startswith(f"{f}/")), None)
        if name in TOP or (folder and re.fullmatch(FOLDERS[folder], name[len(folder) + 1 :])):
            continue
        wrong.append(f"{name}: no place in the tree is meant for it")
    return wrong


def modules(files: list[str]) -> dict[str, str]:
    """Dotted name below the package -> file."""
    found = {}
    for name in files:
        if name.startswith(f"{PACKAGE}/") and name.endswith(".py"):
            dotted = name[len(PACKAGE) + 1 : -3].replace("/", ".")
            found[dotted.removesuffix(".__init__")] = name
    return found


def imported(root: Path, name: str) -> set[str]:
    """Every dotted name that a file imports from the package, with and without its last part."""
    found = source_facts(root / name)
    names = found.modules | {f"{module}.{said}" for module, names in found.names_of.items() for said in names}
    return {n.removeprefix("kernelworks.") for n in names if n.startswith("kernelworks.")}


def orphans(root: Path, files: list[str]) -> list[str]:
    """Modules that nothing imports, headers that nothing includes, kernels and data that nothing names."""
    known = modules(files)
    used = set().union(*(imported(root, name) - {dotted} for dotted, name in known.items())) if known else set()
    text = {n: (root / n).read_text(encoding="utf-8") for n in files if n.startswith(f"{PACKAGE}/")}
    sources = [n for n in text if Path(n).suffix in (".cpp", ".hpp", ".cu", ".cuh")]
    includes = {n: set(re.findall(r'#\s*include\s+"(?:\w+/)*([^"/]+)"', text[n])) for n in sources}
    python = "\n".join(t for n, t in text.items() if n.endswith(".py"))
    wrong = []
    for dotted, name in known.items():
        is_package = name.endswith("/__init__.py")
        op_package = f"{Path(name).parent}/__init__.py"
        by_a_kernel = any(maker in text.get(op_package, "") for maker in KERNEL_MODULES.get(Path(name).name, ()))
        if not (dotted in used or dotted in STARTED or is_package or by_a_kernel or ".rules." in f".{dotted}"):
            wrong.append(f"{name}: no module imports it")
    for name in sources:
        base = Path(name).name
        included = any(base in found for other, found in includes.items() if other != name)
        stem = Path(base).stem if name.endswith((".cpp", ".cu")) else base
        named = any(said in python for said in (f'"{base}"', f'/{base}"', f'"{stem}"'))
        if not included and not named:
            wrong.append(f"{name}: nothing includes or builds it")
    for name in text:
        path = Path(name)
        if path.suffix in DATA - {".md"} and path.name not in python and path.parent.name not in python:
            wrong.append(f"{name}: no module reads it")
    return wrong


def second_homes(root: Path, files: list[str]) -> list[str]:
    """Ops with two op packages, op packages that hold another op than their name says, contracts outside the op
    packages."""
    homes: dict[str, str] = {}
    wrong = []
    for op_package in op_packages(files):
        name = Path(op_package).name
        if name in homes:
            wrong.append(f"{op_package}: {name} lives in {homes[name]} already")
        homes[name] = op_package
        contract = root / op_package / "contract.py"
        if contract.exists():
            said = re.search(r"Contract\(\s*(?:name=)?\"(\w+)\"", contract.read_text(encoding="utf-8"))
            if said and said[1].rstrip("_") != name:
                wrong.append(f"{op_package}: its contract is for {said[1]}")
    for name in files:
        outside = name.startswith(f"{PACKAGE}/") and name.endswith(".py") and not name.startswith(f"{PACKAGE}/ops/")
        if outside and re.search(r"^CONTRACT\b|^OP = Op\(", (root / name).read_text(encoding="utf-8"), re.M):
            wrong.append(f"{name}: an op outside the op packages")
    return wrong


def unfinished_op_packages(root: Path, files: list[str]) -> list[str]:
    """Rooms that lack a file they need, or hold one that no op package has."""
    wrong = []
    for op_package, names in op_packages(files).items():
        # An op that is made of others' kernels has kernels in Python alone.
        on_a_gpu = names & {"triton.py", "sm90.cu"}
        needed = OP_PACKAGE_FILES if any(n.endswith(".cpp") for n in names) or not on_a_gpu else IN_PYTHON
        made = (root / op_package / "__init__.py").read_text(encoding="utf-8") if "__init__.py" in names else ""
        if "TEMPLATE.op(" in made or "TABLE.op(" in made:
            needed = OF_A_TEMPLATE
        wrong += [f"{op_package}: has no {name}" for name in sorted(needed - names)]
        for name in sorted(names - OP_PACKAGE_MAY_HOLD):
            if Path(name).suffix not in (".hpp", ".cuh", ".py") or "/" in name:
                wrong.append(f"{op_package}/{name}: not a file of an op package")
    return wrong


def names_outside_the_grammar(root: Path, files: list[str]) -> list[str]:
    """Files and folders with a word in their names that says nothing, or Python files not in snake case."""
    wrong = []
    for name in files:
        for part in Path(name).parts:
            words = set(re.split(r"[_.\-]", part.lower()))
            if words & BANNED_WORDS:
                wrong.append(f"{name}: {', '.join(sorted(words & BANNED_WORDS))} says nothing about what it is")
        if name.endswith(".py") and not re.fullmatch(r"[a-z0-9_]+\.py", Path(name).name):
            wrong.append(f"{name}: not in snake case")
    return wrong


def oversize(root: Path, files: list[str]) -> list[str]:
    """Python files and functions that are too long to read in one go."""
    wrong = []
    for name in (n for n in files if n.endswith(".py")):
        text = (root / name).read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > MOST_LINES and WRITTEN not in text.split("\n", 1)[0]:
            wrong.append(f"{name}: {lines} lines, at most {MOST_LINES}")
        for line, function, length, kernel in source_facts(root / name).functions:
            most = MOST_KERNEL_LINES if kernel else MOST_FUNCTION_LINES
            if length > most:
                wrong.append(f"{name}:{line}: {function} has {length} lines, at most {most}")
    return wrong


def leftovers(root: Path, files: list[str]) -> list[str]:
    """Marks of unfinished work, and tests that are turned off."""
    wrong = []
    for name in (n for n in files if Path(n).suffix in (".py", ".cpp", ".hpp", ".toml", ".md", ".cu", ".cuh")):
        text = (root / name).read_text(encoding="utf-8")
        wrong += [f"{name}: {mark}" for mark in BANNED_MARKS if mark in text and re.search(rf"\b{mark}\b", text)]
        if name.startswith("tests/"):
            wrong += [f"{name}: {m}" for m in re.findall(r"pytest\.(?:mark\.)?(?:skip|xfail|importorskip)\w*", text)]
    return wrong


def environment_readers(root: Path, files: list[str]) -> list[str]:
    """Modules other than ``machine/environment.py`` that read environment variables."""
    wrong = []
    for name in files:
        if name.startswith(f"{PACKAGE}/") and name.endswith(".py") and name != f"{PACKAGE}/machine/environment.py":
            for found in re.findall(r"os\.(?:environ\b(?!\s*=)(?:\.get|\[)?|getenv)", (root / name).read_text("utf-8")):
                wrong.append(f"{name}: {found}")
    return wrong


# Where an op is named outside its op package, since the module's subject is that op, or what stands for it elsewhere.
NAMES_OPS = {
    "benchmarks/h200_blocks.py": "one op's rate beside that of another",
    "benchmarks/h200_cases.py": "the shapes of the figures on record that no proof tries",
    "benchmarks/h200_ops.py": "an op's error that its own kind of truth has",
    "benchmarks/programs.py": "a program of the suite has an op's name",
    "benchmarks/packed_gemv.py": "products with packed weights beside memory's rate",
    "benchmarks/timed_on_record.py": "the same, as timings",
    f"{PACKAGE}/climb/baselines.py": "a ladder races what its op races",
    f"{PACKAGE}/diagnose/slow_paths/missing_packages.py": "functions of other packages, by their names",
    f"{PACKAGE}/estimators/kernel_functions.py": "kernel functions by scikit-learn's names, each of them an op",
    f"{PACKAGE}/estimators/ridge.py": "the name of a kernel function is its default",
    **{
        f"{PACKAGE}/experiment/{name}.py": "an experiment about these ops"
        for name in ("block_size", "experts", "smoother", "state")
    },
    f"{PACKAGE}/fuse/rules.py": "a fused function calls the expressions of the table of activations",
    f"{PACKAGE}/nn/attention.py": "transformers' attention interface",
    f"{PACKAGE}/nn/experts.py": "transformers' experts interface, and the mixture that is composed of these ops",
    f"{PACKAGE}/nn/kernel_attention.py": "smoothers that are composed of these ops",
    f"{PACKAGE}/nn/transformers_recurrence.py": "functions of recurrent layers, each of them one of these ops",
    f"{PACKAGE}/nn/functional.py": "stand-ins that read arguments quicker, or ask more, than a torch signature says",
    f"{PACKAGE}/nn/compiled_loss.py": "one op's operator for compilers",
    f"{PACKAGE}/nn/decoder.py": "one kind of layer, of these ops",
    f"{PACKAGE}/nn/identify.py": "formulas that are verified to be these ops",
    f"{PACKAGE}/nn/language.py": "a language model's loss",
    f"{PACKAGE}/nn/quantized_linear.py": "a module whose parameter is packed bytes",
    f"{PACKAGE}/nn/torch_modules.py": "forwards that look for their parameters by hand",
    f"{PACKAGE}/nn/__init__.py": "torch's modules on our ops",
    f"{PACKAGE}/nn/optim.py": "one op's optimiser",
    f"{PACKAGE}/nn/block_optim.py": "one op's optimiser",
}
# there strings are torch's operators too
_TORCHS = ("profile/cost", "diagnose", "contract/bounds", "search/schedule")
BY_TORCHS_NAMES = tuple(
    f"{PACKAGE}/{folder}/" for folder in ("profile/cost", "diagnose", "contract/bounds", "search/schedule", "fuse")
)


def ops_named_elsewhere(root: Path, files: list[str]) -> list[str]:
    """Modules outside the op packages that import one, or name an op as text or as a function, for no reason given
    above; and reasons for a module that names none."""
    names = _ops_of(root)
    wrong, named = [], set()
    for name in files:
        theirs = name.startswith("benchmarks/programs/")  # a user's, as those in examples are
        inside = name.startswith(f"{PACKAGE}/ops/") or not name.startswith((f"{PACKAGE}/", "benchmarks/")) or theirs
        if inside or not name.endswith(".py"):
            continue
        torchs = name.startswith(BY_TORCHS_NAMES)
        found = sorted(set(_named_in(root / name, {n for n in names if not (torchs and _is_torchs(n))})))
        if found:
            named.add(name)
        wrong += [f"{name}: names {op}" for op in found if name not in NAMES_OPS]
    return wrong + [
        f"{name}: names no op, and has a reason to" for name in NAMES_OPS if name in files and name not in named
    ]


def _ops_of(root: Path) -> set[str]:
    """The names in the families' list; those of backwards too. A word that is a function of Python's says nothing, nor
    does an entry of a table: that is a function of torch's, which is named for itself."""
    tree = ast.parse((root / PACKAGE / "ops/__init__.py").read_text(encoding="utf-8"))
    said = next(n.value for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "FAMILIES")
    names = {name for family in ast.literal_eval(said).values() for name in family}  # type: ignore[arg-type]
    return (names | {f"{name}_backward" for name in names}) - vars(builtins).keys()


def _is_torchs(name: str) -> bool:
    return hasattr(torch.ops.aten, name)


def _named_in(path: Path, names: set[str]) -> Iterator[str]:
    found = source_facts(path)
    yield from (module for module in found.modules if re.match(r"kernelworks\.ops\.\w+\.\w+", module))
    for face in ("kernelworks", "kernelworks.ops"):
        yield from found.names_of.get(face, set()) & names
    yield from map(repr, found.strings & names)
    yield from (f"{face}.{attribute}" for face, attribute in found.attributes if attribute in names)


def unknown_commands(root: Path, files: list[str]) -> list[str]:
    """Commands that a page of the docs tells the reader to type and that do not exist."""
    verbs = getattr(get_command(app), "commands", {})
    options = {verb: {o for p in command.params for o in p.opts} for verb, command in verbs.items()}
    made = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.M))
    wrong = []
    for name in (n for n in files if n.endswith(".md")):
        for line in code_of((root / name).read_text(encoding="utf-8")):
            for target in re.findall(r"\bmake ([a-z][a-z-]*)\b", line):
                wrong += [] if target in made else [f"{name}: make {target}"]
            for verb, rest in re.findall(r"(?:^|[`$] ?|-m )kernelworks ([a-z][a-z-]*)\b([^`|#\n]*)", line):
                if verb not in verbs:
                    wrong.append(f"{name}: kernelworks {verb}")
                    continue
                for option in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", rest.split(" -- ")[0]):
                    wrong += [] if option in options[verb] | {"--help"} else [f"{name}: kernelworks {verb} {option}"]
    return wrong


def code_of(text: str) -> list[str]:
    """The lines of fenced or indented code, and every span in backquotes, of a page."""
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S)
    spans = re.findall(r"`[^`\n]+`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    indented = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [line for block in fenced for line in block.splitlines()] + spans + indented


def shared_test_names(root: Path, files: list[str]) -> list[str]:
    """Files of tests that share a name, whatever their folders: pytest imports one of them and refuses the others."""
    tests = [name for name in files if re.fullmatch(r"tests/(?:\w+/)*\w+\.py", name) and "conftest" not in name]
    first = {name.rsplit("/", 1)[-1]: name for name in reversed(tests)}
    return [f"{name}: {at} has its name" for name in tests if (at := first[name.rsplit("/", 1)[-1]]) != name]


def undrawn_folders(root: Path, files: list[str]) -> list[str]:
    """Folders of the package that the drawing in docs/explanation/architecture.md does not show."""
    shown = set(re.findall(r"\b(\w+)/", (root / "docs/explanation/architecture.md").read_text(encoding="utf-8")))
    folders = {name.split("/")[2] for name in files if name.startswith(f"{PACKAGE}/") and name.count("/") > 2}
    return [
        f"{PACKAGE}/{folder}: docs/explanation/architecture.md does not show it" for folder in sorted(folders - shown)
    ]


MOST_FILES = 40  # in one folder of the package


def loose_modules(root: Path, files: list[str]) -> list[str]:
    """Modules in the root of the package that are neither its face nor its command, and folders of more files than a
    reader takes in."""
    loose = re.compile(rf"{PACKAGE}/(?!__init__|__main__)\w+\.py")
    counts = Counter(str(Path(name).parent) for name in files if name.startswith(f"{PACKAGE}/"))
    return [f"{name}: lies in no package" for name in files if loose.fullmatch(name)] + [
        f"{folder}: {count} files, at most {MOST_FILES}" for folder, count in counts.items() if count > MOST_FILES
    ]


RULES: list[Callable[[Path, list[str]], list[str]]] = [
    strays, orphans, second_homes, unfinished_op_packages, names_outside_the_grammar, oversize, leftovers,
    environment_readers, ops_named_elsewhere, unknown_commands, undrawn_folders,
    shared_test_names, loose_modules,
]  # fmt: skip

# What breaks each rule: files of a small tree.
BROKEN: dict[str, dict[str, str]] = {
    "strays": {"notes.txt": "", "src/other/thing.py": ""},
    "orphans": {f"{PACKAGE}/lonely.py": "", f"{PACKAGE}/simd/lonely.hpp": "", f"{PACKAGE}/lonely/data.json": ""},
    "second_homes": {f"{PACKAGE}/ops/a/gelu/x.py": "", f"{PACKAGE}/ops/b/gelu/x.py": "", f"{PACKAGE}/o.py": "OP = Op("},
    "unfinished_op_packages": {f"{PACKAGE}/ops/a/gelu/__init__.py": "", f"{PACKAGE}/ops/a/gelu/notes.txt": ""},
    "names_outside_the_grammar": {
        f"{PACKAGE}/tensor_utils.py": "",
        f"{PACKAGE}/new/a.py": "",
        "tests/test_Gelu.py": "",
    },
    "oversize": {
        "tests/test_long.py": "x = 1\n" * 600,
        "tests/test_deep.py": "def f():\n" + "    x = 1\n" * (MOST_FUNCTION_LINES + 1),
        f"{PACKAGE}/deep.py": "@triton.jit\ndef f():\n" + "    x = 1\n" * (MOST_KERNEL_LINES + 1),
    },
    "leftovers": {
        "tests/test_a.py": f"# {BANNED_MARKS[0]}\n",
        "tests/test_b.py": "import pytest\npytest.sk" + "ip('')\n",
    },
    "environment_readers": {f"{PACKAGE}/a.py": "import os\nx = os.environ['A']\n"},
    "ops_named_elsewhere": {
        f"{PACKAGE}/ops/__init__.py": "FAMILIES: dict[str, tuple[str, ...]] = {'a': ('silu_mul', 'rope')}",
        f"{PACKAGE}/a.py": "KNOWN = {'silu_mul': 1}\n",
        f"{PACKAGE}/b.py": "import kernelworks as kw\nkw.rope()\n",
        f"{PACKAGE}/c.py": "from kernelworks.ops.position.rope import OP\n",
        f"{PACKAGE}/nn/__init__.py": "",
    },
    "loose_modules": {f"{PACKAGE}/a.py": "", **{f"{PACKAGE}/many/f{n}.py": "" for n in range(MOST_FILES + 1)}},
    "shared_test_names": {"tests/test_a.py": "", "tests/b/test_a.py": ""},
    "undrawn_folders": {
        f"{PACKAGE}/cellar/a.py": "",
        f"{PACKAGE}/ops/a.py": "",
        "docs/explanation/architecture.md": "ops/",
    },
    "unknown_commands": {
        "README.md": "```\nmake nothing\nkernelworks dance\nkernelworks map --colour\n```\n",
        "Makefile": "test:\n",
    },
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Callable[[Path, list[str]], list[str]]) -> None:
    assert rule(ROOT, tree(ROOT)) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_rejects(rule: Callable[[Path, list[str]], list[str]], tmp_path: Path) -> None:
    for name, text in BROKEN[rule.__name__].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    complaints = rule(tmp_path, tree(tmp_path))
    for name in BROKEN[rule.__name__]:
        if name not in (
            "tests/test_a.py",
            "Makefile",
            "docs/explanation/architecture.md",
            f"{PACKAGE}/ops/__init__.py",
            f"{PACKAGE}/ops/a.py",
        ):
            assert any(name in complaint or name.rsplit("/", 1)[0] in complaint for complaint in complaints), name
