"""Names carry their noun: nothing public is called by a bare participle, adverb or pronoun.

``told``, ``found`` and ``KEPT`` tell a reader nothing and grep everything; ``render_json``, ``matches`` and
``MOST_KEPT_BYTES`` say what a thing is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/kernelworks"

# Participles that do not end in -ed, adverbs that do not end in -ly, pronouns and prepositions.
BARE = frozenset(
    """
    told made held said found kept taken drawn written read given known begun built sent bought brought caught
    chosen done fallen felt gone grown heard hidden hit left lost met run seen set shown sold spent stood taught
    thought understood won borne born cut put let shut split sought wound worn alone apart among beside between here
    there once again together away ahead aside instead elsewhere otherwise whole both either neither each all some
    any none it they them one ones other others what which who whose where when why how this that these those plain
    odd even only just still yet also too early late
    """.split()  # noqa: SIM905
)
# Words of the field that stand alone: what came of an optimization.
OUTCOMES = {"applied", "rejected"}
NOUNS = {"speed", "seed", "feed", "need", "family", "assembly", "apply", "multiply", "reply", "supply", "tally"}
# A method that is an imperative verb has its object before the dot: `op.run`, `store.read`.
VERBS = {"run", "read", "set", "put", "cut", "split", "let", "shut", "hit"}
# `with plan.aside():` reads as a sentence, and programs that measure plans are written with it.
CONTEXTS = {"aside"}
# The text of device code and of launches is hashed into certificates: a name there costs a verification on a GPU.
HASHED = re.compile(r"tile/\w+\.py|ops/.*/(triton|sm90)\w*\.py")
GENERATED = "ops/generated.py"


def is_bare(name: str) -> bool:
    """Whether a name is one word, and that a participle, an adverb or a pronoun."""
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", name)
    if len(words) != 1:
        return False
    word = words[0].lower()
    if word in NOUNS or word in OUTCOMES:
        return False
    return word in BARE or (len(word) > 3 and word.endswith(("ed", "ly")))


def names(source: str, file: str) -> Iterator[tuple[str, str]]:
    """Each public name that a module defines, with what it is."""
    yield "module", Path(file).stem
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield "class" if isinstance(node, ast.ClassDef) else "function", node.name
        if isinstance(node, ast.ClassDef):
            yield from (("method", n.name) for n in node.body if isinstance(n, ast.FunctionDef))
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (("constant", t.id) for t in targets if isinstance(t, ast.Name))


def bare_names(source: str, file: str) -> list[str]:
    if HASHED.fullmatch(file) or file == GENERATED:
        return []
    return [
        f"{file}: the {kind} {name} carries no noun"
        for kind, name in names(source, file)
        if not name.startswith("_") and is_bare(name) and not (kind == "method" and name in VERBS | CONTEXTS)
    ]


def test_names_carry_their_noun() -> None:
    files = {str(p.relative_to(PACKAGE)): p.read_text(encoding="utf-8") for p in sorted(PACKAGE.rglob("*.py"))}
    assert len(files) > 500
    assert [said for file, source in files.items() for said in bare_names(source, file)] == []


@pytest.mark.parametrize(
    "source",
    ["def told(record): ...", "KEPT = 3", "class Whole: ...", "class A:\n    def alone(self): ...", "plainly: int = 3"],
)
def test_a_bare_name_is_rejected(source: str) -> None:
    assert len(bare_names(source, "package/module.py")) == 1


@pytest.mark.parametrize(
    "source",
    ["def _told(record): ...", "MOST_KEPT_BYTES = 3", "class NotIdentified: ...", "class A:\n    def run(self): ..."],
)
def test_a_name_with_its_noun_is_accepted(source: str) -> None:
    assert not bare_names(source, "package/module.py")


def test_a_module_is_named_too() -> None:
    assert bare_names("", "package/settled.py") and not bare_names("", "package/settlement.py")
