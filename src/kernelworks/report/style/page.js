"use strict";
document.querySelector("main").classList.add("scripted");
// A click on a heading sorts by that column, numbers by their data-value; a second click turns the order round. A table's
// rows are in one body, or each in a body of its own.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") !== "descending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const many = table.tBodies.length > 1;
      const first = (item) => (many ? item.rows[0] : item);
      const key = (item) => first(item).cells[column].dataset.value ?? first(item).cells[column].textContent.trim();
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        const numbers = x !== "" && y !== "" && !Number.isNaN(Number(x)) && !Number.isNaN(Number(y));
        return numbers ? Number(x) - Number(y) : x.localeCompare(y);
      };
      const sorted = [...(many ? table.tBodies : table.tBodies[0].rows)].sort(order);
      (many ? table : table.tBodies[0]).append(...(descending ? sorted.reverse() : sorted));
      table.dispatchEvent(new Event("sorted"));
    });
  });
}
// Of a long table the first rows are enough at first.
for (const table of document.querySelectorAll("table.folded")) {
  const rest = [...table.tBodies[0].rows].slice(12);
  if (!rest.length) continue;
  rest.forEach((row) => (row.hidden = true));
  const more = document.createElement("button");
  more.type = "button";
  more.className = "more";
  more.textContent = `Show all ${rest.length + 12}`;
  more.addEventListener("click", () => {
    rest.forEach((row) => (row.hidden = false));
    more.remove();
  });
  table.parentElement.after(more);
}
// A button copies what stands beside it; where the clipboard is closed to a page, it selects it.
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}
