"""The site in a browser: the console, search, narrow screens, dark, the keyboard, accessibility."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (360, 390, 1280)
PATIENCE_S = 60  # for what a busy machine takes; nothing is judged by its time
# Each kind of page once: the front page, a tutorial, tables of figures, generated pages, pages with a moving picture, a
# page of the repository.
PAGES = (
    "index.html", "tutorial.html", "glossary.html", "troubleshooting.html", "how-to/read-a-diagnosis.html",
    "how-to/pull-requests.html", "reference/cli.html", "reference/results.html", "reference/suite.html",
    "explanation/roofline.html", "explanation/architecture.html", "explanation/attention.html",
    "explanation/warps.html", "explanation/tile-by-hand.html", "reference/experiment.html",
    "repository/ladders/cpu-sgemm/worklog.html",
)  # fmt: skip
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


# Of a table's rows that differ only in their words, and in what their links are called and lead to, three stay: what is
# judged of an element is whether it has words, not which.
THREE_ROWS_OF_A_KIND = """() => {
  for (const table of document.querySelectorAll("table")) {
    const met = new Map();
    for (const row of table.querySelectorAll("tbody tr")) {
      const kind = row.outerHTML
        .replace(/>([^<]*)</g, (all, words) => (words.trim() ? ">words<" : "><"))
        .replace(/ (href|title)="[^"]+"/g, " $1");
      met.set(kind, (met.get(kind) ?? 0) + 1);
      if (met.get(kind) > 3) row.remove();
    }
  }
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def errors() -> list[str]:
    return []


def opened(browser: Any, url: str, errors: list[str], **options: Any) -> Any:
    """A page in a context of its own; what its console or its requests report as an error is kept."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("requestfailed", lambda request: errors.append(f"not loaded: {request.url}"))
    page.goto(url)
    page.wait_for_load_state("networkidle")
    return page


def sideways(page: Any) -> int:
    """The columns of pixels by which the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_at_every_width(browser: Any, address: str, errors: list[str], name: str) -> None:
    for width in WIDTHS:  # opened anew at each: a page that is resized moves for a while
        page = opened(browser, f"{address}/{name}", errors, viewport={"width": width, "height": 800})
        assert sideways(page) <= 0, f"{name} scrolls sideways at {width} px"
        pictures = page.evaluate("[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)")
        assert pictures == [] and errors == []
        page.context.close()


def test_a_narrow_table_breaks_no_word(browser: Any, address: str, errors: list[str]) -> None:
    page = opened(browser, f"{address}/reference/experiment.html", errors, viewport={"width": 360, "height": 800})
    broken = page.evaluate(
        "[...document.querySelectorAll('td a')].filter(link => !/\\s/.test(link.textContent))"
        ".filter(link => link.getClientRects().length > 1).map(link => link.textContent)"
    )
    assert page.locator("td a").count() > 10 and broken == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_serious_stands_in_a_readers_way(
    browser: Any, address: str, errors: list[str], name: str, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    width = {"light": 1280, "dark": 360}[scheme]  # what scrolls on a narrow screen must be reached, too
    page = opened(browser, f"{address}/{name}", errors, color_scheme=scheme, viewport={"width": width, "height": 800})
    page.evaluate(THREE_ROWS_OF_A_KIND)
    found = Axe().run(page).response["violations"]
    serious = [
        f"{item['id']}: {item['nodes'][0]['html'][:120]}" for item in found if item["impact"] in ("serious", "critical")
    ]
    assert serious == []
    page.context.close()


def test_the_dark_of_the_system_is_followed(browser: Any, address: str, errors: list[str]) -> None:
    papers = {}
    for scheme in ("light", "dark"):
        page = opened(browser, f"{address}/index.html", errors, color_scheme=scheme)
        red, green, blue = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number)"
        )
        papers[scheme] = red + green + blue
        page.context.close()
    assert papers["dark"] < 200 < 600 < papers["light"]


def found_by_search(page: Any, words: str) -> list[str]:
    page.wait_for_selector("[data-md-component=search-query]:not([disabled])", state="attached")
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.wait_for_function("document.querySelectorAll('.md-search-result__link').length > 0")
    links: list[str] = page.evaluate(
        "[...document.querySelectorAll('.md-search-result__link')].map(link => link.getAttribute('href'))"
    )
    return links


@pytest.mark.parametrize(
    "words, page_name", [("mutant", "glossary"), ("fail-if-slower", "compare"), ("Slurm", "shared")]
)
@pytest.mark.parametrize("served", [True, False], ids=["served", "from the folder"])
def test_the_search_finds(
    browser: Any, site: Path, address: str, errors: list[str], words: str, page_name: str, served: bool
) -> None:
    page = opened(browser, f"{address}/index.html" if served else (site / "index.html").as_uri(), errors)
    assert any(page_name in link for link in found_by_search(page, words))
    assert errors == []
    page.context.close()


def test_the_keyboard_suffices(browser: Any, address: str, errors: list[str]) -> None:
    """Tab reaches the link past the navigation first, then one link after the other; Enter follows one."""
    page = opened(browser, f"{address}/index.html", errors)
    reached = []
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("(e => [e.tagName, e.textContent.trim().slice(0, 40), e.className])(document.activeElement)")
        )
    assert "skip" in reached[0][1].lower(), reached[0]
    assert sum(tag == "A" for tag, *_ in reached) > 8
    links = page.locator(".md-content a[href$='.html']")
    links.first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: not url.endswith("/index.html"))
    page.context.close()


# ---------------------------------------------------------------- the moving pictures


def test_a_warps_sectors_follow_its_stride(browser: Any, address: str, errors: list[str]) -> None:
    page = opened(browser, f"{address}/explanation/warps.html", errors)
    said = {}
    for stride in (1, 8, 32, 33):
        page.locator(".concept input").first.fill(str(stride))
        said[stride] = page.locator(".concept svg").get_attribute("aria-label")
    assert "touches 4 sectors" in said[1] and "takes 1 pass." in said[1]
    assert "touches 32 sectors" in said[8] and "takes 8 passes" in said[8]
    assert "takes 32 passes" in said[32] and "takes 1 pass." in said[33]
    page.locator(".concept input").nth(1).fill("3")
    page.locator(".concept input").first.fill("1")
    assert "touches 5 sectors" in page.locator(".concept svg").get_attribute("aria-label")
    assert page.locator(".concept rect.hit").count() == 5 + 32 and errors == []
    page.context.close()


def test_a_point_climbs_the_roofline_with_its_tile(browser: Any, address: str, errors: list[str]) -> None:
    page = opened(browser, f"{address}/explanation/tile-by-hand.html", errors)
    words = page.locator(".concept p[aria-live]")
    assert "Tile of 1 x 1: 0.25 flop" in words.text_content() and "memory decides" in words.text_content()
    page.locator(".concept input[type=range]").fill("5")
    assert "at most 263 GFLOP/s: the multipliers decide" in words.text_content()  # 32 x 32 on 42 GB/s
    page.locator(".concept input[type=number]").nth(1).fill("10")
    assert "at most 80 GFLOP/s: memory decides" in words.text_content() and errors == []
    page.context.close()


def test_an_online_softmax_ends_at_the_sum_of_all(browser: Any, address: str, errors: list[str]) -> None:
    page = opened(browser, f"{address}/explanation/attention.html", errors)
    page.locator(".concept input").fill("0 0 0 0  1 0 0 0")
    following = page.get_by_role("button", name="Next block")
    following.click()
    assert "sum of weights 4" in page.locator(".concept p[aria-live]").text_content()
    following.click()
    text = page.locator(".concept p[aria-live]").text_content()
    assert "multiplied by 0.368" in text and "sum of weights 3.58" in text and "is 3.58: the same" in text
    assert following.is_disabled() and page.locator(".concept tbody tr").count() == 2 and errors == []
    page.context.close()


def test_a_record_is_drawn_and_what_is_none_is_named(
    browser: Any, address: str, errors: list[str], tmp_path: Path
) -> None:
    from kernelworks.experiment.list import plan_named
    from kernelworks.experiment.plan import run_plan
    from kernelworks.records import to_document

    record = run_plan(plan_named("summation"), lambda said: None)
    files = {"good": to_document(record), "other": '{"schema": "Peaks/1"}'}
    page = opened(browser, f"{address}/reference/experiment.html", errors)
    said = {}
    for name, text in files.items():
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
        page.locator(".concept input[type=file]").set_input_files(tmp_path / f"{name}.json")
        page.wait_for_function(
            "before => document.querySelector('.concept p').textContent !== before",
            arg=said.get("good", "No record was chosen yet."),
        )
        said[name] = page.locator(".concept p").text_content()
        if name == "good":
            assert page.locator(".concept svg path").count() == 1 + len(record.series)
            assert page.locator(".concept li").count() == len(record.readings)
    assert said["good"].startswith(record.question) and "this is no record of an experiment" in said["other"]
    assert errors == []
    page.context.close()
