// What the theme leaves out for readers who use the keyboard or listen: the search has a name, and a table that scrolls
// takes the focus.
addEventListener("load", function () {
  document.querySelectorAll("[data-md-component=search]").forEach(function (search) {
    search.setAttribute("aria-label", "Search");
  });
  requestAnimationFrame(function () {
    document.querySelectorAll(".md-typeset__scrollwrap").forEach(function (table) {
      table.setAttribute("tabindex", "0");
      table.setAttribute("role", "region");
      table.setAttribute("aria-label", "Table");
    });
  });
});
