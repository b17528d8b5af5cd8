// The table of hotspots: filter by text and by cause, the first rows at first, source that opens, links from elsewhere.
const hotspots = document.getElementById("hotspots");
const showHotspot = (() => {
  if (!hotspots) return () => {};
  const bodies = [...hotspots.tBodies];
  const byId = (id) => document.getElementById(id);
  const [filter, clear, shown, more] = ["filter", "clear-cause", "shown", "more"].map(byId);
  const causes = new Map(bodies.map((body) => [body, JSON.parse(body.dataset.causes)]));
  const texts = new Map(bodies.map((body) => [body, `${body.rows[0].textContent} ${body.querySelector("dl").textContent}`.toLowerCase()]));
  const short = (s) => (s >= 0.9995 ? `${s.toPrecision(3)} s` : s >= 0.9995e-3 ? `${(s * 1e3).toPrecision(3)} ms` : `${(s * 1e6).toPrecision(3)} us`);
  let cause = "";
  let all = false;
  const update = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (body) => words.every((word) => texts.get(body).includes(word)) && (!cause || cause in causes.get(body));
    let matching = [...hotspots.tBodies].filter(fits);
    const count = matching.length;
    const whole = all || count <= Number(hotspots.dataset.first);
    if (!whole) matching = matching.slice(0, Number(hotspots.dataset.first));
    const visible = new Set(matching);
    bodies.forEach((body) => (body.hidden = !visible.has(body)));
    more.hidden = whole;
    more.textContent = `Show all ${count} hotspots`;
    shown.textContent = count < bodies.length ? `${count} of ${bodies.length} hotspots` : `${count} hotspots`;
    clear.hidden = !cause;
    clear.textContent = `Cause: ${cause} \u00d7`;
    clear.title = "Show every cause again";
    document.querySelectorAll("[data-cause]").forEach((part) => {
      part.classList.toggle("chosen", part.dataset.cause === cause);
      if (part.tagName === "BUTTON") part.setAttribute("aria-pressed", String(part.dataset.cause === cause));
    });
  };
  // With a cause chosen, hotspots come by their time of it, which stands below their own; else as they came.
  const choose = (name) => {
    cause = name === cause ? "" : name;
    const own = (body) => causes.get(body)[cause] ?? 0;
    hotspots.append(...(cause ? [...bodies].sort((a, b) => own(b) - own(a)) : bodies));
    hotspots.querySelectorAll("th").forEach((heading, i) => {
      heading.removeAttribute("aria-sort");
      if (!cause && i === 6) heading.setAttribute("aria-sort", "descending");
    });
    bodies.forEach((body) => (body.querySelector(".of-cause").textContent = cause ? `${short(own(body))} of this cause` : ""));
    update();
  };
  filter.addEventListener("input", update);
  more.addEventListener("click", () => {
    all = true;
    update();
  });
  clear.addEventListener("click", () => choose(cause));
  hotspots.addEventListener("sorted", update);
  document.querySelectorAll("[data-cause]").forEach((part) => part.addEventListener("click", () => choose(part.dataset.cause)));
  const open = (body, expanded) => {
    body.querySelector(".detail").hidden = !expanded;
    body.querySelector(".open").setAttribute("aria-expanded", String(expanded));
  };
  bodies.forEach((body) => {
    const opener = body.querySelector(".open");
    opener.addEventListener("click", () => open(body, opener.getAttribute("aria-expanded") !== "true"));
  });
  update();
  // A row and its dot in the roofline light up together; each leads to the other.
  for (const dot of document.querySelectorAll("g.dot")) {
    const body = byId(dot.id.replace(/^dot(-narrow)?/, "hotspot"));
    if (!body) continue;
    for (const one of [dot, body]) {
      one.addEventListener("mouseenter", () => [dot, body].forEach((e) => e.classList.add("lit")));
      one.addEventListener("mouseleave", () => [dot, body].forEach((e) => e.classList.remove("lit")));
    }
    dot.addEventListener("click", () => show(Number(body.id.replace("hotspot-", ""))));
  }
  for (const link of document.querySelectorAll("a.to-dot")) {
    link.addEventListener("click", (event) => {
      const wide = byId(link.getAttribute("href").slice(1));
      const narrow = byId(link.getAttribute("href").slice(1).replace("dot", "dot-narrow"));
      const dot = [wide, narrow].find((one) => one?.getBoundingClientRect().width > 0);
      if (!dot) return;
      event.preventDefault();
      document.querySelectorAll("g.dot.lit").forEach((other) => other.classList.remove("lit"));
      dot.classList.add("lit");
      dot.scrollIntoView({ block: "center" });
    });
  }
  const show = (number) => {
    const body = byId(`hotspot-${number}`);
    if (!body) return;
    if (body.hidden) {
      [filter.value, all] = ["", true];
      if (cause) choose(cause);
      else update();
    }
    open(body, true);
    history.replaceState(null, "", `#hotspot-${number}`);
    body.scrollIntoView({ block: "start" });
    body.querySelector(".open").focus({ preventScroll: true });
    bodies.forEach((other) => other.classList.toggle("lit", other === body));
  };
  const follow = () => {
    const found = /^#hotspot-(\d+)$/.exec(location.hash);
    if (found) show(Number(found[1]));
  };
  addEventListener("hashchange", follow);
  follow();
  return show;
})();
