// Bars: histograms with stacked parts, and one whole divided into shares.

// labels: one a bar. parts: {name, values, colour}.
function histogram({ title, note, labels, parts, xLabel, yLabel, height = 210, anchor = 0 }) {
  const totals = labels.map((_, bar) => sum(parts.map((part) => part.values[bar])));
  const highest = Math.max(...totals, 0);
  if (!highest) return null;
  const canvas = s("svg", { class: "plot", height, role: "img", "aria-label": `${title}. ${labels.map((l, i) => `${l}: ${number(totals[i])}`).join("; ")}` });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, title), note && h("p", {}, note)),
    parts.length > 1 ? h("ul", { class: "legend" }, parts.map((part) =>
      h("li", {}, h("span", { class: "key area", vars: { "--ink": part.colour } }), part.name))) : null, canvas);
  let before = 0;
  new ResizeObserver((entries) => {
    const width = entries[0].contentRect.width;
    if (width < 40 || width === before) return;
    before = width;
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.replaceChildren(...barShapes({ labels, parts, totals, highest, width, height, xLabel, yLabel, anchor }));
  }).observe(figure);
  return figure;
}

function barShapes({ labels, parts, totals, highest, width, height, xLabel, yLabel, anchor }) {
  const ticks = niceTicks(0, highest * 1.05, Math.max(3, Math.floor(height / 42)));
  const tickText = yLabel || number;
  const left = leftOf(ticks.map(tickText));
  const right = width - PAD.right;
  const bottom = height - PAD.bottom;
  const y = (value) => bottom - (value / (highest * 1.05)) * (bottom - PAD.top);
  const wide = (right - left) / labels.length;
  const gap = Math.min(2, wide * 0.15);
  const every = Math.ceil(labels.length / Math.max(1, Math.floor((right - left) / 52)));
  return [
    s("g", { class: "grid" }, ticks.map((t) => s("path", { d: `M${left} ${y(t)}H${right}` }))),
    s("g", { class: "axis" },
      ticks.map((t) => s("text", { x: left - 8, y: y(t) + 4, "text-anchor": "end" }, tickText(t))),
      labels.map((label, bar) => (bar - anchor) % every ? null
        : s("text", { x: left + (bar + 0.5) * wide, y: bottom + 17, "text-anchor": "middle" }, label)),
      s("text", { class: "label", x: right, y: height - 3, "text-anchor": "end" }, xLabel)),
    ...labels.map((label, bar) => {
      let base = 0;
      return s("g", { class: "bar" }, s("title", {}, barTitle(label, bar, parts, totals)),
        s("rect", { class: "hit", x: left + bar * wide, y: PAD.top, width: wide, height: bottom - PAD.top }),
        parts.map((part) => {
          const value = part.values[bar] || 0;
          const top = y(base + value);
          const tall = y(base) - top;
          base += value;
          return value ? s("rect", { vars: { "--ink": part.colour }, x: left + bar * wide + gap, y: top, width: wide - 2 * gap, height: Math.max(0.6, tall) }) : null;
        }));
    }),
  ];
}

function barTitle(label, bar, parts, totals) {
  const lines = parts.filter((part) => part.values[bar]).map((part) => `${part.name}: ${number(part.values[bar])}`);
  return `${label}\n${lines.join("\n")}${parts.length > 1 ? `\ntogether: ${number(totals[bar])}` : ""}`;
}

// One bar of shares. parts: {name, value, colour, shown}.
function shares(parts, { label }) {
  const total = sum(parts.map((part) => part.value));
  if (!total) return null;
  const there = parts.filter((part) => part.value > 0);
  return h("div", { class: "shares", role: "img", "aria-label": `${label}: ${there.map((part) => `${part.name} ${percent(part.value / total, 0)}`).join(", ")}` },
    h("div", { class: "strip" }, there.map((part) =>
      h("span", { title: `${part.name}: ${percent(part.value / total)}`, vars: { "--ink": part.colour, "--share": part.value / total } }))),
    h("ul", { class: "legend" }, there.map((part) =>
      h("li", {}, h("span", { class: "key area", vars: { "--ink": part.colour } }), `${part.name} `, h("b", {}, percent(part.value / total, part.value / total < 0.01 ? 1 : 0)),
        part.shown ? h("span", { class: "quiet" }, ` ${part.shown}`) : null))));
}
