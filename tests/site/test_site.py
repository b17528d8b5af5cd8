"""The site as files: every link leads somewhere, nothing comes from another host, the ladders' pages are part of it."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]


class _Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set[str]()  # type: ignore[var-annotated]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in given:
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload", "dns-prefetch"):
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def parsed(site: Path) -> dict[Path, _Page]:
    return {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def test_nothing_is_loaded_from_another_host(site: Path, parsed: dict[Path, _Page]) -> None:
    away = [f"{path.relative_to(site)}: {url}" for path, page in parsed.items() for url in page.loads if "//" in url]
    styles = [
        f"{path.name}: {url}"
        for path in site.rglob("*.css")
        for url in re.findall(r"url\(([^)]*)\)", path.read_text(encoding="utf-8"))
        if "//" in url and not url.strip("'\"").startswith("data:")
    ]
    assert away + styles == []


def test_every_link_of_the_site_leads_somewhere(site: Path, parsed: dict[Path, _Page]) -> None:
    dead = []
    for path, page in parsed.items():
        if path.name == "404.html":  # its links are those of the root
            continue
        for link in page.links:
            if urlsplit(link).scheme:
                continue
            plain, anchor = urldefrag(link)
            target = Path(unquote(os.path.normpath(urljoin(path.as_posix(), plain)))) if plain else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                dead.append(f"{path.relative_to(site)}: {link}")
            elif anchor and target in parsed and unquote(anchor) not in parsed[target].anchors:
                dead.append(f"{path.relative_to(site)}: {link}: no such anchor")
    assert dead == []


def test_the_ladders_pages_are_part_of_it(site: Path) -> None:
    for folder in (ROOT / "ladders").iterdir():
        if (folder / "results.json").is_file():
            assert (site / "ladders" / folder.name / f"{folder.name}.html").is_file(), folder.name
