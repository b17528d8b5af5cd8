"use strict";
// A click on a heading sorts by that column, numbers by their data-value; a second click turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") !== "descending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        const numbers = x !== "" && y !== "" && !Number.isNaN(Number(x)) && !Number.isNaN(Number(y));
        return numbers ? Number(x) - Number(y) : x.localeCompare(y);
      };
      const rows = [...body.rows].sort(order);
      body.append(...(descending ? rows.reverse() : rows));
    });
  });
}
// A row of the table and its dot in the roofline light up together.
for (const dot of document.querySelectorAll("g.dot")) {
  const row = document.getElementById(dot.id.replace("dot-", "hotspot-"));
  if (!row) continue;
  for (const one of [dot, row]) {
    one.addEventListener("mouseenter", () => [dot, row].forEach((e) => e.classList.add("lit")));
    one.addEventListener("mouseleave", () => [dot, row].forEach((e) => e.classList.remove("lit")));
  }
}
// The first rows are enough at first, in whatever order they are.
const more = document.getElementById("more");
if (more) {
  more.addEventListener("click", () => {
    document.getElementById("hotspots").classList.add("all");
    more.remove();
  });
}
