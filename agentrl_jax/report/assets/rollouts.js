// Time and throughput, staleness, how episodes ended and how long they were.

function timeAreas(title, note, parts, columns) {
  return chart({ title, note, unit: "seconds", series: parts.map((part) => ({
    name: part.name, kind: "area", colour: part.colour, x: columns.step, y: columns[part.column] || [] })) });
}

function time() {
  return section("time", "Time", null, grid(
    timeAreas("Seconds a step", "the learner’s loop, by the clock", TIME_PARTS, run.steps),
    timeAreas("Seconds of episodes", "of the episodes that a step consumed, added up", EPISODE_PARTS, run.episodeTimes),
    figureChart("Throughput", "tokens of finished episodes a second, the whole run together", [["loss_tokens_per_s", "sampled"], ["tokens_per_s", "all"]], "number", { hasZero: true, height: 210 }),
    figureChart("Utilisation", "share of the clock that the learner learns; places for episodes in use", [["learner_busy_frac", "learner"], ["slots_busy_frac", "places"]], "percent", { range: [0, 1.02], height: 210 })));
}

const STALENESS_BARS = ["0", "1", "2", "3", "4", "5_8", "9_16", "17_32", "33_up"];

function stalenessBars(of, suffix) {
  const pools = Object.keys(of.staleness);
  const used = STALENESS_BARS.slice(0, 1 + Math.max(0, ...pools.flatMap((pool) => STALENESS_BARS.map((bar, place) => (of.staleness[pool][bar] ? place : 0)))));
  return histogram({ title: `Staleness of trained tokens${suffix}`, note: "learner version − the version that sampled the token",
    labels: used.map((bar) => bar.replace("_up", "+").replace("_", "–")), xLabel: "versions behind",
    parts: pools.map((pool) => ({ name: `${pool} engines`, colour: pool === "current" ? "var(--accent)" : "var(--c1)", values: used.map((bar) => of.staleness[pool][bar] || 0) })) });
}

function ratioBars(of, suffix) {
  const { edges, counts, steps } = of.ratio;
  if (!sum(counts)) return null;
  const all = [...edges.map((edge) => -edge).reverse(), ...edges].map((edge) => Math.exp(edge));
  const short = (value) => (value < 0.1 || value >= 10 ? number(value) : String(Number(value.toFixed(Math.abs(value - 1) < 0.06 ? 3 : 2))));
  const labels = counts.map((_, bar) => bar === 0 ? `< ${short(all[0])}` : bar === all.length ? `> ${short(all[all.length - 1])}`
    : bar === edges.length ? "1" : bar < edges.length ? short(all[bar - 1]) : short(all[bar]));
  const total = sum(counts);
  return histogram({ title: `Importance ratios${suffix}`, note: `share of tokens, before their step; from ${plural(steps.length, "recorded batch").replace("batchs", "batches")}`, labels, anchor: edges.length, xLabel: "ratio learner : engine",
    yLabel: (v) => UNITS.percent.tick(v), parts: [{ name: "tokens", colour: "var(--accent)", values: counts.map((count) => count / total) }] });
}

function endRows(of) {
  const envs = Object.keys(of.ends);
  return END_ORDER.filter((end) => envs.some((env) => of.ends[env][end])).map((end) => [end, ...envs.map((env) => of.ends[env][end] || 0)]);
}

function endStrips(of, suffix) {
  return Object.entries(of.ends).map(([env, counts]) => h("div", { class: "tile strip-tile" },
    h("h3", {}, h("span", { class: "dot", vars: { "--ink": envColour(env) } }), env, suffix && h("small", {}, ` ${suffix}`)),
    shares(END_ORDER.filter((end) => counts[end]).map((end) => ({ name: words(end), value: counts[end], colour: endColour(end), shown: whole(counts[end]) })), { label: `Ends of ${env}` })));
}

function lengthBars(column, title, xLabel) {
  const found = run.lengths[column];
  const labels = found.edges.slice(0, -1).map((edge) => number(edge));
  return histogram({ title, labels, xLabel, parts: Object.entries(found.counts).map(([env, values]) => ({ name: env, colour: envColour(env), values })) });
}

function errorTable() {
  if (!run.errors.length) return null;
  return plainTable([{ text: "times", numeric: true }, { text: "task" }, { text: "end" }, { text: "what was said" }],
    run.errors.map((one) => [whole(one.count), one.env, words(one.end), h("code", {}, one.text)]), "Errors, the most frequent first");
}

function staleness() {
  return section("staleness", "Staleness", null, grid(
    stalenessBars(run, other ? `, ${run.name}` : ""), other && stalenessBars(other, `, ${other.name}`),
    ratioBars(run, other ? `, ${run.name}` : ""), other && ratioBars(other, `, ${other.name}`),
    figureChart("Age of tokens", "mean, in versions", [["token_staleness", "mean"]], "number", { hasZero: true }),
    figureChart("Turns of lagging engines", "cross-policy sampling", [["lagging_turn_frac", "share"]], "percent", { hasZero: true })));
}

function endings() {
  const strips = [...endStrips(run, other && run.name), ...(other ? endStrips(other, other.name) : [])];
  return section("ends", "How episodes ended", null,
    strips.length && h("div", { class: "tiles ends" }, strips),
    errorTable(),
    grid(lengthBars("tokens", "Tokens of an episode", "tokens, prompt included"), lengthBars("loss_tokens", "Sampled tokens of an episode", "tokens"), lengthBars("turns", "Turns of an episode", "turns")));
}

function settings() {
  const mine = new Map(flat(run.config));
  const lines = other ? new Map(flat(other.config)) : null;
  const names = [...new Set([...mine.keys(), ...(lines ? lines.keys() : [])])];
  const differ = lines ? names.filter((name) => mine.get(name) !== lines.get(name)) : [];
  const cell = (value) => h("code", {}, value ?? "–");
  return section("settings", "Settings", null,
    lines && plainTable([{ text: "setting" }, { text: run.name }, { text: other.name }], differ.map((name) => [name, cell(mine.get(name)), cell(lines.get(name))]), differ.length ? "What differs" : "No setting differs"),
    names.length ? h("details", {}, h("summary", {}, `All ${names.length} settings`), plainTable([{ text: "setting" }, { text: "value" }], names.map((name) => [name, cell(mine.get(name))]))) : null,
    run.starts.length ? h("details", {}, h("summary", {}, plural(run.starts.length, "start")), run.starts.map((start) => h("div", { class: "start" },
      h("p", {}, `${start.time || ""} · ${start.machine || ""} · ${start.devices || ""} · Python ${start.python || ""} · ${Object.entries(start.versions || {}).map(([name, v]) => `${name} ${v}`).join(", ")}`),
      h("pre", {}, (start.command || []).join(" ")),
      Object.entries(start.changes || {}).map(([name, change]) => h("p", {}, h("code", {}, `${name}: ${change}`)))))) : null);
}
