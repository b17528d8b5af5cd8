// The moving pictures of the concept pages, without any library. A page has <div class="concept" data-widget="NAME">; what
// stands in it is for readers without JavaScript, and is replaced.
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";

  function element(name, attributes, children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    for (const child of children || []) made.append(child);
    return made;
  }

  function shape(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // A picture that scales with the page; redrawn, its label says what it shows to whoever does not see it.
  function picture(width, height) {
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    svg.redraw = (label, shapes) => {
      svg.setAttribute("aria-label", label);
      svg.replaceChildren(...shapes);
    };
    return svg;
  }

  let labels = 0;
  function labelled(text, input) {
    input.id = `concept-input-${++labels}`;
    return element("div", { class: "concept-input" }, [element("label", { for: input.id }, [text]), input]);
  }

  function slider(least, most, value) {
    return element("input", { type: "range", min: least, max: most, step: 1, value });
  }

  const figure = (x) => (x >= 1e4 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(2) : String(+x.toPrecision(3)));

  // ---------------------------------------------------------------- a roofline whose point moves with the tile

  function tileRoofline(place) {
    const tile = slider(0, 9, 0);
    const peak = element("input", { type: "number", min: 1, step: "any", value: 263 });
    const rate = element("input", { type: "number", min: 1, step: "any", value: 42 });
    const said = element("p", { "aria-live": "polite" }), svg = picture(360, 230);
    const left = 46, right = 350, top = 14, bottom = 196, low = 2 ** -3, high = 2 ** 8;

    function draw() {
      const size = 2 ** Number(tile.value), flops = Math.max(1, Number(peak.value) || 1);
      const bytes = Math.max(1, Number(rate.value) || 1), intensity = size / 4;
      const reached = Math.min(flops, bytes * intensity), ridge = flops / bytes;
      const most = flops * 2, least = Math.min(bytes * low, flops / 100) / 1.5;
      const across = (i) => left + ((right - left) * Math.log(i / low)) / Math.log(high / low);
      const up = (r) => bottom - ((bottom - top) * Math.log(r / least)) / Math.log(most / least);
      const bend = Math.min(high, Math.max(low, ridge));
      const line = [[low, bytes * low], [bend, Math.min(flops, bytes * bend)], [high, Math.min(flops, bytes * high)]];
      const shapes = [
        shape("path", { d: `M${left} ${top}V${bottom}H${right}`, class: "axis" }),
        shape("path", { d: "M" + line.map(([i, r]) => `${across(i)} ${up(r)}`).join("L"), class: "roof" }),
        shape("line", { x1: across(intensity), x2: across(intensity), y1: up(reached), y2: bottom, class: "guide" }),
        shape("circle", { cx: across(intensity), cy: up(reached), r: 6, class: "mark" }),
        shape("text", { x: left + 6, y: up(flops) - 5 }, `${figure(flops)} GFLOP/s`),
        shape("text", { x: (left + right) / 2, y: 224, "text-anchor": "middle" }, "flop for each byte"),
      ];
      for (const i of [0.25, 1, 4, 16, 64])
        shapes.push(shape("text", { x: across(i), y: 210, "text-anchor": "middle" }, String(i)));
      const bound = bytes * intensity < flops ? "memory decides" : "the multipliers decide";
      const text = `Tile of ${size} x ${size}: ${figure(intensity)} flop for each byte, so at most ${figure(reached)} GFLOP/s: ` +
        `${bound}. The ridge point lies at ${figure(ridge)}, a tile of ${figure(4 * ridge)}.`;
      said.textContent = text;
      tile.setAttribute("aria-valuetext", `${size} x ${size}`);
      svg.redraw(text, shapes);
    }
    for (const input of [tile, peak, rate]) input.addEventListener("input", draw);
    place.replaceChildren(
      labelled("Size of the tile", tile), svg, said,
      labelled("Peak, GFLOP/s (yours: kernelworks machine)", peak), labelled("Memory, GB/s", rate),
    );
    draw();
  }

  // ---------------------------------------------------------------- the accesses of a warp

  const LANES = 32, SECTOR = 8, BANKS = 32;

  function warpTraffic(stride, offset) {
    const words = [...Array(LANES).keys()].map((lane) => offset + lane * stride);
    const sectors = new Set(words.map((word) => Math.floor(word / SECTOR)));
    const banks = Array.from({ length: BANKS }, () => new Set());
    for (const word of words) banks[word % BANKS].add(word);
    return { sectors, banks: banks.map((bank) => bank.size) };
  }

  function warp(place) {
    const stride = slider(0, 33, 1), offset = slider(0, 7, 0);
    const said = element("p", { "aria-live": "polite" }), svg = picture(360, 236), columns = 24, cell = 14;

    function draw() {
      const by = Number(stride.value), from = Number(offset.value), { sectors, banks } = warpTraffic(by, from);
      const passes = Math.max(...banks), shapes = [shape("text", { x: 12, y: 16 }, "sectors of 32 bytes, global memory")];
      for (let s = 0; s < columns * 6; s++)
        shapes.push(shape("rect", {
          x: 12 + (s % columns) * cell, y: 24 + Math.floor(s / columns) * cell, width: cell - 2, height: cell - 2,
          class: sectors.has(s) ? "hit" : "idle",
        }));
      shapes.push(shape("text", { x: 12, y: 130 }, "words that each bank of shared memory has to serve"));
      banks.forEach((count, bank) => {
        const height = (70 * count) / Math.max(8, passes);
        shapes.push(shape("rect", { x: 12 + bank * 10.5, y: 210 - height, width: 8.5, height: Math.max(height, 1), class: count ? "hit" : "idle" }));
      });
      shapes.push(shape("text", { x: 12, y: 226 }, "bank 0"), shape("text", { x: 348, y: 226, "text-anchor": "end" }, "bank 31"));
      const text = `Stride ${by}, first element ${from}: the load touches ${sectors.size} ` +
        `sector${sectors.size > 1 ? "s" : ""} of global memory, and in shared memory takes ${passes} pass${passes > 1 ? "es" : ""}.`;
      said.textContent = text;
      svg.redraw(text, shapes);
    }
    for (const input of [stride, offset]) input.addEventListener("input", draw);
    place.replaceChildren(labelled("Floats from one thread's element to the next's", stride), labelled("First element", offset), svg, said);
    draw();
  }

  // ---------------------------------------------------------------- online softmax, step by step

  const BLOCK = 4;

  function onlineSteps(scores) {
    let maximum = -Infinity, total = 0;
    const steps = [];
    for (let at = 0; at < scores.length; at += BLOCK) {
      const some = scores.slice(at, at + BLOCK), higher = Math.max(maximum, ...some);
      const factor = Math.exp(maximum - higher), added = some.reduce((sum, s) => sum + Math.exp(s - higher), 0);
      total = total * factor + added;
      maximum = higher;
      steps.push({ some, maximum, factor, added, total });
    }
    return steps;
  }

  function onlineSoftmax(place) {
    const given = element("input", { type: "text", value: "1 0 2 1  0 1 1 2  5 1 0 2  3 4 1 0", spellcheck: "false" });
    const next = element("button", { type: "button" }, ["Next block"]);
    const again = element("button", { type: "button" }, ["Start again"]);
    const said = element("p", { "aria-live": "polite" }), svg = picture(360, 150), body = element("tbody");
    const head = ["block", "scores", "m'", "e^(m - m')", "new weights", "l'"].map((text) => element("th", { scope: "col" }, [text]));
    const table = element("div", { class: "concept-table", tabindex: "0", role: "region", "aria-label": "Steps" }, [
      element("table", {}, [element("thead", {}, [element("tr", {}, head)]), body]),
    ]);
    let shown = 0;

    function draw() {
      const scores = given.value.split(/[\s,;|]+/).filter(Boolean).map(Number).filter(Number.isFinite).slice(0, 64);
      const steps = onlineSteps(scores), now = steps[Math.min(shown, steps.length) - 1];
      shown = Math.min(shown, steps.length);
      next.disabled = shown >= steps.length;
      body.replaceChildren(...steps.slice(0, shown).map((step, at) => element("tr", {}, [
        at + 1, step.some.join(" "), figure(step.maximum), at ? figure(step.factor) : "-", figure(step.added), figure(step.total),
      ].map((text) => element("td", {}, [String(text)])))));
      const width = 336 / Math.max(scores.length, 1), shapes = [];
      scores.forEach((score, at) => {
        const read = at < shown * BLOCK, weight = read ? Math.exp(score - now.maximum) : 0;
        shapes.push(shape("rect", { x: 12 + at * width, y: 126 - 100 * weight, width: Math.max(width - 2, 1), height: Math.max(100 * weight, 1), class: read ? "hit" : "idle" }));
      });
      shapes.push(shape("text", { x: 12, y: 144 }, "each score's weight e^(s - m), over the maximum so far"));
      let text = "No block was read yet: m is minus infinity, l is 0.";
      if (now) {
        text = `After block ${shown}: maximum ${figure(now.maximum)}, sum of weights ${figure(now.total)}.`;
        if (shown > 1 && now.factor < 1) text += ` The maximum moved, so the older sum was multiplied by ${figure(now.factor)}.`;
        if (shown === steps.length) {
          const most = Math.max(...scores), whole = scores.reduce((sum, s) => sum + Math.exp(s - most), 0);
          text += ` Over all scores at once the sum is ${figure(whole)}: the same.`;
        }
      }
      said.textContent = text;
      svg.redraw(text, shapes);
    }
    next.addEventListener("click", () => { shown += 1; draw(); });
    again.addEventListener("click", () => { shown = 0; draw(); });
    given.addEventListener("input", () => { shown = 0; draw(); });
    place.replaceChildren(labelled("Scores, four to a block", given), element("div", { class: "concept-input" }, [next, again]), svg, said, table);
    draw();
  }

  // ---------------------------------------------------------------- a record of `kernelworks experiment --json`

  const finite = (x) => typeof x === "number" && Number.isFinite(x);

  function readExperiment(text) {
    const record = JSON.parse(text);
    if (!String(record.schema).startsWith("Experiment/")) throw new Error("this is no record of an experiment");
    const points = record.series.flatMap((series) => series.points);
    if (!points.length || !points.every((p) => finite(p.x) && finite(p.value))) throw new Error("it has no points that can be drawn");
    return record;
  }

  function drawExperiment(record, svg) {
    const left = 54, right = 350, top = 12, bottom = 206, points = record.series.flatMap((series) => series.points);
    const scale = (values, axis, from, to) => {
      const of = axis.logarithmic ? Math.log : (x) => x;
      const low = axis.logarithmic || axis === record.x ? Math.min(...values) : Math.min(0, ...values), high = Math.max(...values);
      return { low, high, at: (x) => from + ((to - from) * (of(x) - of(low))) / (of(high) - of(low) || 1) };
    };
    const x = scale(points.map((p) => p.x), record.x, left, right), y = scale(points.map((p) => p.value), record.y, bottom, top);
    const shapes = [shape("path", { d: `M${left} ${top}V${bottom}H${right}`, class: "axis" })];
    record.series.forEach((series, index) => {
      const way = series.points.map((p) => `${x.at(p.x)} ${y.at(p.value)}`).join("L");
      shapes.push(shape("path", { d: `M${way}`, class: series.is_limit ? "limit" : `series series-${index % 3}` }));
      shapes.push(shape("text", { x: left + 6, y: 262 + 14 * index, class: `series-${index % 3}` }, `${series.is_limit ? "- -" : "—"} ${series.name}`));
    });
    const name = (p) => p.label || figure(p.x), first = points.reduce((a, b) => (b.x < a.x ? b : a)), last = points.reduce((a, b) => (b.x > a.x ? b : a));
    shapes.push(
      shape("text", { x: left, y: 222 }, name(first)), shape("text", { x: right, y: 222, "text-anchor": "end" }, name(last)),
      shape("text", { x: (left + right) / 2, y: 240, "text-anchor": "middle" }, record.x.label),
      shape("text", { x: left - 4, y: bottom, "text-anchor": "end" }, figure(y.low)), shape("text", { x: left - 4, y: top + 8, "text-anchor": "end" }, figure(y.high)),
    );
    svg.setAttribute("viewBox", `0 0 360 ${268 + 14 * record.series.length}`);
    svg.redraw(`${record.y.label} over ${record.x.label}`, shapes);
  }

  function recordFigure(place) {
    const file = element("input", { type: "file", accept: ".json,application/json" });
    const said = element("p", { "aria-live": "polite" }, ["No record was chosen yet."]), list = element("ul"), svg = picture(360, 300);
    svg.setAttribute("aria-label", "Nothing is drawn yet");
    svg.style.display = "none";
    file.addEventListener("change", async () => {
      try {
        const record = readExperiment(await file.files[0].text());
        drawExperiment(record, svg);
        svg.style.display = "";
        const where = record.is_timed ? `measured on ${record.machine}` : "computed: the same on every machine";
        said.textContent = `${record.question} ${record.y.label}${record.y.unit ? `, ${record.y.unit}` : ""}; ${where}.`;
        list.replaceChildren(...record.readings.map((text) => element("li", {}, [String(text)])));
      } catch (error) {
        svg.style.display = "none";
        list.replaceChildren();
        said.textContent = `It cannot be drawn: ${error.message}.`;
      }
    });
    place.replaceChildren(labelled("A record, from kernelworks experiment NAME --json", file), svg, said, list);
  }

  const WIDGETS = { "tile-roofline": tileRoofline, warp, "online-softmax": onlineSoftmax, record: recordFigure };

  function start() {
    document.querySelectorAll(".concept[data-widget]").forEach((place) => WIDGETS[place.dataset.widget](place));
  }
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
