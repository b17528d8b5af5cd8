"""A page opened in a headless browser: what it shows, and what its console says."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    "--virtual-time-budget=2000", "--dump-dom",
)  # fmt: skip

# Runs in the page after its own script: sorts by each column and looks for texts that lie on each other.
PROBE = """<script>
const found = {};
const table = document.getElementById("hotspots");
if (table) {
  const times = () => [...table.tBodies].map((body) => Number(body.rows[0].cells[2].dataset.value));
  table.tHead.rows[0].cells[2].querySelector("button").click();
  found.descending = times();
  table.tHead.rows[0].cells[2].querySelector("button").click();
  found.ascending = times();
}
const shown = () => [...document.querySelectorAll("#hotspots tr.hotspot")].filter((row) => row.offsetHeight > 0).length;
const first = shown();
document.getElementById("more")?.click();
found.shown = [first, shown()];
found.overlaps = [];
const drawn = [...document.querySelectorAll("svg")].filter((svg) => svg.getBoundingClientRect().height > 0);
for (const svg of drawn) {
  const texts = [...svg.querySelectorAll("text")].filter((t) => !t.closest("title"));
  const flat = texts.filter((t) => !/rotate\\(-(?!0[ )])/.test(t.getAttribute("transform") ?? ""));
  const boxes = flat.map((t) => [t.textContent, t.getBoundingClientRect()]);
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3)
      found.overlaps.push(a + " / " + b);
  }));
}
found.tables = [...document.querySelectorAll("table")].map((t) => t.getBoundingClientRect().height);
found.svgs = drawn.map((s) => s.getBoundingClientRect().height);
const boxed = [...document.querySelectorAll(".scroll, .picture")];
found.scrolling = boxed.filter((e) => e.scrollWidth > e.clientWidth + 1).length;
found.paths = document.querySelectorAll("svg path").length;
found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const note = document.createElement("output");
note.id = "probe";
note.textContent = JSON.stringify(found);
document.body.append(note);
</script>"""


def browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def opened(text: str, folder: Path, width: int = 1280, probe: str = PROBE) -> tuple[dict[str, Any], list[str]]:
    """What the probe found in the page, and the console's messages. Without a browser, fails under CI. A ``probe`` is a
    script that leaves JSON in an element with the id ``probe``."""
    chromium = browser()
    assert chromium is not None, "no chromium on the PATH (Debian: apt install chromium)"
    file = folder / "page.html"
    # the probe is an inline script like the page's own, so the page's policy against requests stays in force
    # no window of chromium's is narrower than 500 pixels, a page may be
    narrow = f"<style>html {{ width: {width}px }}</style></head>" if width < 500 else "</head>"
    file.write_text(text.replace("</head>", narrow).replace("</body>", probe + "</body>"), encoding="utf-8")
    command = [
        chromium,
        *FLAGS,
        f"--window-size={max(width, 500)},900",
        f"--user-data-dir={folder / 'profile'}",
        file.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    noted = re.search(r'<output id="probe">(.*?)</output>', done.stdout, re.S)
    assert noted, f"the page did not run its scripts: {messages or done.stderr[-2000:]}"
    return json.loads(html.unescape(noted[1])), messages


def without_browser() -> bool:
    """Whether to do without: only outside CI, and never silently."""
    if browser() is not None or "CI" in os.environ:
        return False
    warnings.warn("no chromium here: the pages were not opened in a browser", stacklevel=2)
    return True
