"""Pages lead somewhere: each relative link has its file, each anchor its heading, and no page is more than two clicks
from README.md."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from test_tree import ROOT, tree

START, MOST_CLICKS = "README.md", 2
PROMPTS = "src/kernelworks/search/model/prompts/"  # what a model is told; no page for a reader
LINK = re.compile(r"\]\(<?([^)\s>]*)>?(?:\s+\"[^\"]*\")?\)")


def prose(text: str) -> str:
    """A page without its code: neither blocks nor spans hold links or headings."""
    text = re.sub(r"(?ms)^ *(```|~~~).*?^ *\1[^\n]*$", "", text)
    return re.sub(r"`[^`\n]+`", lambda span: "`" + "x" * (len(span[0]) - 2) + "`", text)


def links(text: str) -> list[tuple[str, str]]:
    """The relative links of a page: path ("" for the page itself) and anchor."""
    found = [target for target in LINK.findall(prose(text)) if not re.match(r"\w+:|//", target)]
    return [(path, anchor) for path, _, anchor in (target.partition("#") for target in found)]


def slug(heading: str) -> str:
    """The anchor that a heading gets: its text in lower case, without punctuation, with hyphens for spaces."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    shown = re.sub(r"[*`]", "", shown).strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a page: its headings, numbered where they repeat, and what has an id."""
    found: set[str] = set(re.findall(r"""\bid=["']([^"']+)["']""", text))
    counts: dict[str, int] = {}
    for line in re.sub(r"(?ms)^ *(```|~~~).*?^ *\1[^\n]*$", "", text).splitlines():
        if heading := re.match(r"#{1,6} +(.*)", line):
            name = slug(heading[1])
            counts[name] = counts.get(name, -1) + 1
            found.add(f"{name}-{counts[name]}" if counts[name] else name)
    return found


def to_page(page: str, path: str) -> str:
    """The file that a link of a page leads to; a folder with a README leads to that."""
    return os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page


def pages(files: list[str]) -> list[str]:
    return [name for name in files if name.endswith(".md") and not name.startswith(PROMPTS)]


def dead_links(root: Path, files: list[str]) -> list[str]:
    """Links to a file that is not there, out of the tree, or to an anchor that its page has not."""
    texts = {name: (root / name).read_text(encoding="utf-8") for name in pages(files)}
    known = {name: anchors(text) for name, text in texts.items()}
    wrong = []
    for name, text in texts.items():
        for path, anchor in links(text):
            target = to_page(name, path)
            if target.startswith("..") or os.path.isabs(target) or not (root / target).exists():
                wrong.append(f"{name}: {path}: no such file")
            elif anchor and target in known and anchor not in known[target]:
                wrong.append(f"{name}: {path}#{anchor}: no such anchor")
    return wrong


def far_pages(root: Path, files: list[str]) -> list[str]:
    """Pages that no two clicks from README.md reach."""
    known = set(pages(files))
    reached, front = {START}, {START}
    for _ in range(MOST_CLICKS):
        step = {to_page(page, path) for page in front for path, _ in links((root / page).read_text(encoding="utf-8"))}
        step |= {f"{target}/README.md" for target in step}
        front = (step & known) - reached
        reached |= front
    return [f"{name}: more than {MOST_CLICKS} clicks from {START}" for name in sorted(known - reached)]


Rule = Callable[[Path, list[str]], list[str]]


@pytest.mark.parametrize("rule", [dead_links, far_pages], ids=lambda rule: rule.__name__)
def test_the_pages_keep_the_rule(rule: Rule) -> None:
    assert rule(ROOT, tree(ROOT)) == []


TEXTS = {
    "README.md": "# A\n[b](docs/b.md) [c](docs/c.md#two--words) ![](docs/p.svg) `[x](g.md)`\n```\n[y](g.md)\n```\n",
    "docs/b.md": '[up](../README.md#a) [d](deep/d.md#here "title")\n# B\n# B\n[self](#b-1)\n',
    "docs/c.md": "## Two & [words](b.md)\n",
    "docs/deep/d.md": '<a id="here"></a>x\n[far](e.md)\n',
    "docs/deep/e.md": "[web](https://example.org/gone.md) [mail](mailto:a@example.org)\n",
    "docs/p.svg": "",
}


def small_tree(root: Path, **changed: str) -> list[str]:
    for name, text in {**TEXTS, **{key.replace("_", "/") + ".md": text for key, text in changed.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return tree(root)


def test_good_links_are_no_dead_ones(tmp_path: Path) -> None:
    assert dead_links(tmp_path, small_tree(tmp_path)) == []


@pytest.mark.parametrize(
    "text",
    ["[a](gone.md)", "[a](../README.md#b)", "[a](../../out.md)", "[a](#nothing)", "![a](gone.svg)", "[a](b.md#b-2)",
     "[a](/etc/hosts)", "[`a`](gone.md)"],
)  # fmt: skip
def test_a_dead_link_is_found(tmp_path: Path, text: str) -> None:
    assert len(dead_links(tmp_path, small_tree(tmp_path, docs_c=f"## Two & words\n{text}\n"))) == 1


def test_a_far_page_is_found(tmp_path: Path) -> None:
    assert far_pages(tmp_path, small_tree(tmp_path)) == ["docs/deep/e.md: more than 2 clicks from README.md"]
