// The icicle: a module zooms in, an operator shows its hotspot; arrow keys go from node to node.
for (const tree of document.querySelectorAll(".icicle")) {
  const nodes = [...tree.querySelectorAll(".node")];
  const said = document.getElementById("node-said");
  const out = document.getElementById("zoom-out");
  const number = (node, name) => Number(node.style.getPropertyValue(name));
  const level = (node) => number(node, "--d");
  const parent = (node) => nodes.slice(0, nodes.indexOf(node)).reverse().find((one) => level(one) < level(node));
  const child = (node) => {
    const next = nodes[nodes.indexOf(node) + 1];
    return next && level(next) > level(node) ? next : undefined;
  };
  const sibling = (node, step) => {
    for (let at = nodes.indexOf(node) + step; nodes[at] && level(nodes[at]) >= level(node); at += step) {
      if (level(nodes[at]) === level(node)) return nodes[at];
    }
    return undefined;
  };
  let zoomed = nodes[0];
  const zoom = (node) => {
    zoomed = node;
    tree.style.setProperty("--zx", number(node, "--x"));
    tree.style.setProperty("--zw", Math.max(number(node, "--w"), 1e-6));
    out.disabled = node === nodes[0];
  };
  const choose = (node) => {
    if (node.dataset.hotspot) showHotspot(Number(node.dataset.hotspot));
    else if (child(node)) zoom(node === zoomed ? parent(node) ?? node : node);
  };
  const move = (node) => {
    if (!node) return;
    nodes.forEach((one) => (one.tabIndex = one === node ? 0 : -1));
    node.focus({ preventScroll: true });
  };
  for (const node of nodes) {
    node.addEventListener("click", () => choose(node));
    node.addEventListener("focus", () => (said.textContent = node.title));
    node.addEventListener("mouseenter", () => (said.textContent = node.title));
  }
  tree.addEventListener("keydown", (event) => {
    const node = event.target.closest(".node");
    if (!node) return;
    const to = { ArrowUp: parent, ArrowDown: child, ArrowRight: (n) => sibling(n, 1), ArrowLeft: (n) => sibling(n, -1) }[event.key];
    if (to) move(to(node));
    else if (event.key === "Home") move(nodes[0]);
    else if (event.key === "Enter" || event.key === " ") choose(node);
    else if (event.key === "Escape") zoom(nodes[0]);
    else return;
    event.preventDefault();
  });
  out.addEventListener("click", () => zoom(nodes[0]));
}
