// The timeline: a track for each bottleneck, drawn on a canvas from the columns that stand beside it.
const timeline = document.getElementById("timeline");
if (timeline) {
  const data = JSON.parse(document.getElementById("spans").textContent);
  const said = document.getElementById("span-said");
  const starts = [];
  data.gaps.reduce((at, gap, i) => (starts[i] = at + gap), 0);
  const end = starts.reduce((most, start, i) => Math.max(most, start + data.lengths[i]), 1);
  const [LABEL, ROW, AXIS] = [18, 38, 22];
  let [from, to] = [0, end];
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const text = (tenths) => (tenths >= 1e7 ? `${(tenths / 1e7).toPrecision(3)} s` : tenths >= 1e4 ? `${(tenths / 1e4).toPrecision(3)} ms` : `${(tenths / 10).toPrecision(3)} us`);
  const draw = () => {
    const width = timeline.clientWidth;
    const height = data.tracks.length * ROW + AXIS;
    const ratio = devicePixelRatio || 1;
    timeline.width = width * ratio;
    timeline.height = height * ratio;
    timeline.style.height = `${height}px`;
    const ink = timeline.getContext("2d");
    ink.scale(ratio, ratio);
    ink.fillStyle = colour("panel");
    ink.fillRect(0, 0, width, height);
    const scale = width / (to - from);
    const step = 10 ** Math.floor(Math.log10((to - from) / 4));
    const tick = [1, 2, 5, 10].map((n) => n * step).find((n) => (to - from) / n < Math.max(2, width / 110)) ?? 10 * step;
    const ticks = [];
    for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) ticks.push(at);
    ink.fillStyle = colour("line");
    ticks.forEach((at) => ink.fillRect((at - from) * scale, 0, 1, height - AXIS));
    ink.font = "12px system-ui, sans-serif";
    ink.textBaseline = "middle";
    const colours = data.tracks.map((track) => colour(track.colour));
    const drawn = data.tracks.map(() => -1); // the last pixel that a track has ink on
    for (let i = 0; i < starts.length; i += 1) {
      const x = (starts[i] - from) * scale;
      const right = x + data.lengths[i] * scale;
      const track = data.track[data.hotspots[i]];
      if (right < 0 || x > width || track < 0 || right <= drawn[track]) continue;
      ink.fillStyle = colours[track];
      ink.fillRect(x, track * ROW + LABEL, Math.max(right - x - (right - x > 3 ? 0.5 : 0), 0.7), ROW - LABEL - 3);
      drawn[track] = Math.floor(right);
    }
    data.tracks.forEach((track, i) => {
      ink.fillStyle = colour("panel");
      ink.fillRect(0, i * ROW, ink.measureText(track.name).width + 12, LABEL);
      ink.fillStyle = colour("ink");
      ink.fillText(track.name, 6, i * ROW + 9);
    });
    ink.fillStyle = colour("muted");
    ticks.forEach((at) => {
      const x = (at - from) * scale;
      if (x < width - 60) ink.fillText(at ? text(at) : "0", x + 3, height - AXIS / 2);
    });
  };
  const zoom = (factor, middle = (from + to) / 2) => {
    const size = Math.min(end, Math.max(20, (to - from) * factor));
    from = Math.min(Math.max(0, middle - ((middle - from) / (to - from)) * size), end - size);
    to = from + size;
    draw();
  };
  const pan = (by) => {
    const size = to - from;
    from = Math.min(Math.max(0, from + by), end - size);
    to = from + size;
    draw();
  };
  const time = (event) => from + ((event.clientX - timeline.getBoundingClientRect().left) / timeline.clientWidth) * (to - from);
  const found = (event) => {
    const at = time(event);
    const track = Math.floor((event.clientY - timeline.getBoundingClientRect().top) / ROW);
    const near = (2 * (to - from)) / timeline.clientWidth;
    let best = -1;
    let least = near;
    for (let i = 0; i < starts.length; i += 1) {
      if (data.track[data.hotspots[i]] !== track) continue;
      const off = Math.max(starts[i] - at, at - starts[i] - data.lengths[i], 0);
      if (off < least) [best, least] = [i, off];
    }
    return best;
  };
  let grip = null;
  timeline.addEventListener("pointerdown", (event) => (grip = { x: event.clientX, moved: false }));
  timeline.addEventListener("pointermove", (event) => {
    if (grip && event.buttons) {
      const by = ((grip.x - event.clientX) / timeline.clientWidth) * (to - from);
      if (Math.abs(grip.x - event.clientX) > 3) grip.moved = true;
      if (grip.moved) {
        grip.x = event.clientX;
        pan(by);
      }
      return;
    }
    const i = found(event);
    said.textContent = i < 0 ? "" : `${data.names[data.hotspots[i]]} in ${data.modules[data.hotspots[i]] || "no module"}: ${text(data.lengths[i])} at ${text(starts[i])}`;
  });
  timeline.addEventListener("pointerup", (event) => {
    const i = grip && !grip.moved ? found(event) : -1;
    grip = null;
    if (i >= 0) showHotspot(data.hotspots[i] + 1);
  });
  timeline.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event));
  }, { passive: false });
  timeline.addEventListener("keydown", (event) => {
    const step = (to - from) / 8;
    const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => pan(-step), ArrowRight: () => pan(step), Escape: () => zoom(Infinity) }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  document.getElementById("closer").addEventListener("click", () => zoom(0.5));
  document.getElementById("farther").addEventListener("click", () => zoom(2));
  document.getElementById("all-of-it").addEventListener("click", () => zoom(Infinity));
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}
