// Line and area charts: drawn anew for every width, read by pointer, touch or arrow keys.

const PAD = { right: 14, top: 10, bottom: 34 };

// Room for the longest label of the upright axis.
const leftOf = (labels) => Math.max(38, 15 + 6.7 * Math.max(...labels.map((label) => label.length)));

function niceTicks(low, high, about) {
  const raw = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) || 10);
  const ticks = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++) {
    ticks.push(Number((place * step).toPrecision(12)));
  }
  return ticks;
}

function widened([low, high], hasZero) {
  if (hasZero) return [Math.min(0, low), high > 0 ? high * 1.05 : Math.max(0, high) || 1];
  if (low === high) return [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const room = (high - low) * 0.08;
  return [low - room, high + room];
}

// series: {name, x, y, colour, kind: "line" | "thin" | "area" | "dash" | "band" (y, top), points: [{x, y, low, high, hollow}]}
// Areas stand on each other, in their order.
function chart({ title, note, unit = "number", xLabel = "learner step", series, range, hasZero, height = 210, marks = [] }) {
  const shown = series.filter((one) => one.kind === "points" ? one.points.length : one.y.some(known));
  if (!shown.length) return null;
  stack(shown.filter((one) => one.kind === "area"));
  const readout = h("output", { class: "readout", "aria-live": "polite" });
  const canvas = s("svg", { class: "plot", height, tabindex: "0", role: "img", "aria-label": described(title, shown, unit) });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, title), note && h("p", {}, note)),
    legend(shown, series.length > 1), canvas, readout);
  const state = { series: shown, unit: UNITS[unit], xLabel, range, hasZero, height, marks, canvas, readout };
  state.xs = [...new Set(shown.flatMap((one) => (one.kind === "points" ? one.points.map((p) => p.x) : one.x)))].sort((a, b) => a - b);
  listen(state);
  new ResizeObserver((entries) => drawn(state, entries[0].contentRect.width)).observe(figure);
  return figure;
}

function stack(areas) {
  let base = null;
  for (const area of areas) {
    area.base = base || area.y.map(() => 0);
    area.top = area.y.map((value, place) => area.base[place] + (value || 0));
    base = area.top;
  }
}

function described(title, series, unit) {
  const show = UNITS[unit].show;
  const parts = series.filter((one) => one.kind !== "thin").map((one) => {
    const values = one.kind === "points" ? one.points.map((p) => p.y) : one.y.filter(known);
    return `${one.name}: ${show(values[0])} to ${show(values[values.length - 1])}`;
  });
  return `${title}. ${parts.join("; ")}. Arrow keys read the values.`;
}

function legend(series, isNeeded) {
  const named = series.filter((one) => one.kind !== "thin");
  if (!isNeeded) return null;
  return h("ul", { class: "legend" }, named.map((one) => {
    const hollow = one.kind === "points" && one.points.every((p) => p.hollow);
    return h("li", {}, h("span", { class: `key ${one.kind}${hollow ? " hollow" : ""}`, vars: { "--ink": one.colour } }), one.name);
  }));
}

function drawn(state, width) {
  if (width < 40 || width === state.width) return;
  const { canvas, series, height, unit } = state;
  state.width = width;
  const [x0, x1] = extent(state.xs);
  const room = x0 === x1 ? 1 : (x1 - x0) * 0.015;
  const [y0, y1] = state.range || widened(yExtent(series), state.hasZero || series.some((one) => one.kind === "area"));
  const ticks = niceTicks(y0, y1, Math.max(3, Math.floor(height / 42)));
  const left = leftOf(ticks.map(unit.tick));
  const right = width - PAD.right;
  const bottom = height - PAD.bottom;
  state.x = (value) => left + ((value - x0 + room) / (x1 - x0 + 2 * room)) * (right - left);
  state.y = (value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - PAD.top);
  canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const across = niceTicks(x0, Math.max(x1, x0 + 1), Math.max(3, Math.floor(width / 75))).filter((t) => Number.isInteger(t) && t <= x1);
  canvas.replaceChildren(
    s("g", { class: "grid" }, ticks.map((t) => s("path", { d: `M${left} ${state.y(t)}H${right}` }))),
    s("g", { class: "axis" },
      ticks.map((t) => s("text", { x: left - 8, y: state.y(t) + 4, "text-anchor": "end" }, unit.tick(t))),
      across.map((t) => s("text", { x: state.x(t), y: bottom + 17, "text-anchor": "middle" }, number(t))),
      s("text", { class: "label", x: right, y: height - 3, "text-anchor": "end" }, state.xLabel)),
    ...state.marks.map((x) => s("path", { class: "mark", d: `M${state.x(x)} ${PAD.top}V${bottom}` })),
    ...series.map((one) => shape(one, state)),
    (state.cursor = s("g", { class: "cursor" })),
  );
}

function yExtent(series) {
  const values = series.flatMap((one) => {
    if (one.kind === "points") return one.points.flatMap((p) => [p.y, p.low, p.high]);
    return one.kind === "area" ? one.top : one.kind === "band" ? [...one.y, ...one.top] : one.y;
  });
  return extent(values);
}

function shape(one, { x, y }) {
  const ink = { "--ink": one.colour };
  if (one.kind === "points") {
    const beside = (p) => x(p.x) + (p.hollow ? 5 : -5);
    return s("g", { class: "points", vars: ink }, one.points.map((p) => [
      known(p.low) && s("path", { d: `M${beside(p)} ${y(p.low)}V${y(p.high)}m-3 0h6M${beside(p) - 3} ${y(p.low)}h6` }),
      s("circle", { cx: beside(p), cy: y(p.y), r: 4, class: p.hollow ? "hollow" : "" }),
    ]));
  }
  if (one.kind === "area" || one.kind === "band") {
    const lower = one.kind === "area" ? one.base : one.y;
    const there = one.x.map((_, place) => place).filter((place) => known(one.top[place]) && known(lower[place]));
    const forth = there.map((place) => `${x(one.x[place]).toFixed(1)} ${y(one.top[place]).toFixed(1)}`);
    const back = there.reverse().map((place) => `${x(one.x[place]).toFixed(1)} ${y(lower[place]).toFixed(1)}`);
    return s("path", { class: one.kind, vars: ink, d: `M${[...forth, ...back].join("L")}Z` });
  }
  let pen = "M";
  let path = "";
  one.x.forEach((value, place) => {
    if (!known(one.y[place])) return;
    path += `${pen}${x(value).toFixed(1)} ${y(one.y[place]).toFixed(1)}`;
    pen = "L";
  });
  if (!path.includes("L") && one.kind !== "thin") {
    const place = one.y.findIndex(known);
    return s("circle", { class: "alone", vars: ink, cx: x(one.x[place]), cy: y(one.y[place]), r: 3 });
  }
  return s("path", { class: `stroke ${one.kind}`, vars: ink, d: path });
}

function listen(state) {
  const { canvas, xs } = state;
  const nearest = (event) => {
    const at = event.clientX - canvas.getBoundingClientRect().left;
    let best = 0;
    xs.forEach((value, place) => { if (Math.abs(state.x(value) - at) < Math.abs(state.x(xs[best]) - at)) best = place; });
    return best;
  };
  canvas.addEventListener("pointermove", (event) => read(state, nearest(event)));
  canvas.addEventListener("pointerleave", () => read(state, null));
  canvas.addEventListener("blur", () => read(state, null));
  canvas.addEventListener("keydown", (event) => {
    const last = xs.length - 1;
    const at = state.at ?? (event.key === "ArrowLeft" ? last + 1 : -1);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    read(state, Math.max(0, Math.min(last, to)));
  });
}

function read(state, at) {
  if (!state.cursor) return;
  state.at = at;
  if (at === null) {
    state.cursor.replaceChildren();
    state.readout.replaceChildren();
    return;
  }
  const x = state.xs[at];
  state.cursor.replaceChildren(s("path", { d: `M${state.x(x)} ${PAD.top}V${state.height - PAD.bottom}` }));
  const values = state.series.filter((one) => one.kind !== "thin").flatMap((one) => valuesAt(one, x, state.unit.show));
  state.readout.replaceChildren(h("b", {}, `${state.xLabel} ${number(x)}`), ...values.map(([ink, text]) =>
    h("span", {}, h("i", { vars: { "--ink": ink } }), text)));
}

function valuesAt(one, x, show) {
  if (one.kind === "points") {
    return one.points.filter((p) => p.x === x).map((p) =>
      [one.colour, `${one.name} ${show(p.y)}${known(p.low) ? ` [${show(p.low)}, ${show(p.high)}]` : ""}`]);
  }
  const place = one.x.indexOf(x);
  if (place < 0 || !known(one.y[place])) return [];
  const range = one.kind === "band" ? `${show(one.y[place])} … ${show(one.top[place])}` : show(one.y[place]);
  return [[one.colour, `${one.name} ${range}`]];
}
