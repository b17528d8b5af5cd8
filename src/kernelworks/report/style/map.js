// What is typed leaves the ops that have every word of it, and the families that have such an op.
const filter = document.querySelector("#map-filter");
filter?.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const family of document.querySelectorAll(".family")) {
    let some = false;
    for (const op of family.querySelectorAll(".mapped")) {
      op.hidden = !words.every((word) => op.dataset.words.toLowerCase().includes(word));
      some ||= !op.hidden;
    }
    family.hidden = !some;
  }
});
