"""What MkDocs does not do by itself, as its hooks: pages link to files all over the repository, on the site too.

A file of the repository that a page links to becomes part of the site, below ``repository/``: a page if it is Markdown
(and what that page links to as well), else a file to download. The pages of the ladders are drawn from their records.
Nothing is written into the repository.
"""

from __future__ import annotations

import os
import posixpath
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

__all__ = ["on_config", "on_files", "on_page_markdown"]

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY, DOCS, LADDERS = "repository", "docs", "ladders"
SECTIONS = {"": "Start", "how-to": "How to", "reference": "Reference", "explanation": "Explanation"}
MOST_BYTES = 8 << 20  # of a file that the site takes along
FOLDER_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^)#\s]+)\)")
LINK = re.compile(r"(\]\(<?)([^)#\s>]+)(#[^)\s>]*)?(>?(?:\s+\"[^\"]*\")?\))")
CODE = re.compile(r"(^ *```.*?^ *```[^\n]*$|`[^`\n]+`)", re.M | re.S)


def _outside_code(text: str, change: Any) -> str:
    """The text with everything but its blocks and spans of code changed. A link whose words are code is one all the
    same: spans are put back by their number."""
    spans: list[str] = []

    def keep(match: re.Match[str]) -> str:
        spans.append(match[0])
        return f"\x00{len(spans) - 1}\x00"

    changed = change(CODE.sub(keep, text))
    return re.sub(r"\x00(\d+)\x00", lambda match: spans[int(match[1])], changed)


def _place(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    return uri.removeprefix(f"{REPOSITORY}/") if uri.startswith(f"{REPOSITORY}/") else f"{DOCS}/{uri}"


def _target(place: str, link: str) -> str | None:
    """The file of the repository that a link leads to; a folder leads to its README; None if there is none to show."""
    if re.match(r"\w+:|//", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
    if (ROOT / path).is_dir():
        path = posixpath.normpath(f"{path}/README.md")
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def _uri(path: str) -> str:
    """Where a file of the repository lies on the site. README.md is the first page's longer sister."""
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{REPOSITORY}/{path}"


def _links(text: str) -> list[str]:
    found: list[str] = []
    _outside_code(text, lambda prose: LINK.sub(lambda match: found.append(match[2]) or match[0], prose))
    return found


def on_config(config: Any) -> Any:
    """Adds pages that the navigation does not name to the section of their folder, behind those that it names."""
    named = set(re.findall(r"[\w./-]+\.md", repr(config.nav)))
    for path in sorted(Path(config.docs_dir).rglob("*.md")):
        uri = path.relative_to(config.docs_dir).as_posix()
        if uri not in named:
            section = SECTIONS[posixpath.dirname(uri)]
            next(part[section] for part in config.nav if isinstance(part, dict) and section in part).append(uri)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the files of the repository that pages link to, and the ladders' pages."""
    waiting = [_place(file.src_uri) for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        place = waiting.pop()
        if not place.endswith(".md"):
            continue
        for link in _links((ROOT / place).read_text(encoding="utf-8")):
            path = _target(place, link)
            if path is None or path in seen or (ROOT / path).stat().st_size > MOST_BYTES:
                continue
            seen.add(path)
            waiting.append(path)
            if not path.startswith(f"{DOCS}/"):
                files.append(File.generated(config, _uri(path), abs_src_path=str(ROOT / path)))
    for uri, page in _ladder_pages().items():
        files.append(File.generated(config, uri, content=page))
    return files


def _ladder_pages() -> dict[str, str]:
    """The pages of the ladders by their places on the site."""
    from kernelworks.climb.command import write_pages

    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(ROOT)
        try:
            pages = write_pages(Path(LADDERS), Path(folder))
        finally:
            os.chdir(here)
        return {f"{LADDERS}/{page.relative_to(folder).as_posix()}": page.read_text(encoding="utf-8") for page in pages}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with links that lead to where the site has the files, and lists as Python's Markdown reads them."""
    uri = page.file.src_uri
    place = _place(uri)

    def link(match: re.Match[str]) -> str:
        path = _target(place, match[2])
        if path is None:
            return match[0]
        there = posixpath.relpath(_uri(path), posixpath.dirname(uri) or ".")
        return f"{match[1]}{there}{match[3] or ''}{match[4]}"

    def words_of_folder(match: re.Match[str]) -> str:
        """A folder without a README has no page on the site: its name stays, without a link."""
        is_folder = (ROOT / posixpath.dirname(place) / match[2]).is_dir()
        return match[1] if is_folder and _target(place, match[2]) is None else match[0]

    def prose(text: str) -> str:
        return LINK.sub(link, FOLDER_LINK.sub(words_of_folder, re.sub(r"(?m)^ {2,3}(?=\S)", "    ", text)))

    text = _outside_code(markdown, prose)
    if place.startswith(f"{LADDERS}/") and place.endswith("/worklog.md"):
        text = _with_page_link(text, uri, place, files)
    return text


def _with_page_link(text: str, uri: str, place: str, files: Files) -> str:
    """A worklog with a link to its ladder's page below the title."""
    folder = posixpath.dirname(place)
    pages = [file.src_uri for file in files if posixpath.dirname(file.src_uri) == folder]
    links = [f"[As a page with pictures]({posixpath.relpath(page, posixpath.dirname(uri))})." for page in pages]
    title, _, rest = text.partition("\n")
    return "\n\n".join([title, *links, rest])
