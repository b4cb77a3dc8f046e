// All episodes: filtered, sorted, and only the rows in sight are drawn.

const ROW = 32;
const table = { rows: [], at: 0, sort: { by: null, down: false }, parts: {} };

const episodes = data.episodes;
const cols = episodes.columns;
const numListed = cols.step.length;

const idOf = (row) => `g${cols.group[row]}-m${cols.member[row]}`;
const envOf = (row) => episodes.names.env[cols.env[row]];
const endOf = (row) => episodes.names.end[cols.end[row]];
const fateOf = (row) => episodes.names.fate[cols.fate[row]];
const hasDetail = (row) => data.details[row] !== undefined;
const rewardText = (value) => (known(value) ? fixed(value, 2) : "–");

const COLUMNS = [
  { name: "episode", value: (row) => cols.group[row] * 1e4 + cols.member[row], cell: idOf },
  { name: "step", value: (row) => cols.step[row], cell: (row) => whole(cols.step[row]), numeric: true },
  { name: "task", value: (row) => envOf(row), cell: (row) => [h("span", { class: "dot", vars: { "--ink": envColour(envOf(row)) } }), envOf(row), h("span", { class: "quiet" }, ` ${cols.index[row]}`)] },
  { name: "end", value: (row) => END_ORDER.indexOf(endOf(row)), cell: (row) => [h("span", { class: "dot", vars: { "--ink": endColour(endOf(row)) } }), words(endOf(row))] },
  { name: "reward", value: (row) => cols.reward[row] ?? -Infinity, cell: (row) => rewardText(cols.reward[row]), numeric: true },
  { name: "turns", value: (row) => cols.turns[row], cell: (row) => whole(cols.turns[row]), numeric: true, minor: true },
  { name: "tokens", value: (row) => cols.loss_tokens[row], cell: (row) => whole(cols.loss_tokens[row]), numeric: true, minor: true },
  { name: "time", value: (row) => cols.wall_s[row], cell: (row) => seconds(cols.wall_s[row]), numeric: true, minor: true },
  { name: "by token", value: (row) => Number(hasDetail(row)), cell: (row) => (hasDetail(row) ? "●" : ""), minor: true },
];

const REWARDS = {
  "any reward": () => true,
  success: (row) => known(cols.env_reward[row]) && cols.env_reward[row] >= 1 && !INFRASTRUCTURE.has(endOf(row)),
  "above 0": (row) => known(cols.reward[row]) && cols.reward[row] > 0,
  "exactly 0": (row) => cols.reward[row] === 0,
  "below 0": (row) => known(cols.reward[row]) && cols.reward[row] < 0,
  none: (row) => !known(cols.reward[row]),
};

function choice(label, options) {
  const select = h("select", { on: { change: filtered } }, options.map((option) => h("option", { value: option.value ?? option }, option.text ?? option)));
  return { select, field: h("label", {}, h("span", {}, label), select) };
}

function filters() {
  const parts = table.parts;
  const ofNames = (name, all) => [{ value: "", text: all }, ...episodes.names[name].filter(Boolean).map((value) => ({ value, text: words(value) }))];
  parts.env = choice("task", ofNames("env", "all tasks"));
  parts.end = choice("end", ofNames("end", "all ends"));
  parts.fate = choice("group", ofNames("fate", "all groups"));
  parts.reward = choice("reward", Object.keys(REWARDS));
  parts.from = h("input", { type: "number", min: "0", "aria-label": "from step", placeholder: "from", on: { input: filtered } });
  parts.to = h("input", { type: "number", min: "0", "aria-label": "to step", placeholder: "to", on: { input: filtered } });
  parts.text = h("input", { type: "search", placeholder: "g12-m3", "aria-label": "episode id begins with", on: { input: filtered } });
  parts.detailed = h("input", { type: "checkbox", on: { change: filtered } });
  return h("form", { class: "filters", on: { submit: (event) => event.preventDefault() } },
    parts.env.field, parts.end.field, parts.reward.field, episodes.names.fate.length > 1 && parts.fate.field,
    h("fieldset", {}, h("legend", {}, "steps"), parts.from, parts.to),
    h("label", {}, h("span", {}, "id"), parts.text),
    h("label", { class: "check" }, parts.detailed, h("span", {}, "token by token only")));
}

function filtered() {
  const { env, end, fate, reward, from, to, text, detailed } = table.parts;
  const wanted = (names, select) => (select.value === "" ? -1 : names.indexOf(select.value));
  const [envAt, endAt, fateAt] = [wanted(episodes.names.env, env.select), wanted(episodes.names.end, end.select), wanted(episodes.names.fate, fate.select)];
  const fits = REWARDS[reward.select.value];
  const [low, high] = [from.value === "" ? -Infinity : Number(from.value), to.value === "" ? Infinity : Number(to.value)];
  const begin = text.value.trim();
  const rows = [];
  for (let row = 0; row < numListed; row++) {
    if (envAt >= 0 && cols.env[row] !== envAt) continue;
    if (endAt >= 0 && cols.end[row] !== endAt) continue;
    if (fateAt >= 0 && cols.fate[row] !== fateAt) continue;
    if (cols.step[row] < low || cols.step[row] > high || !fits(row)) continue;
    if (begin && !idOf(row).startsWith(begin)) continue;
    if (detailed.checked && !hasDetail(row)) continue;
    rows.push(row);
  }
  table.rows = rows;
  sorted();
}

function sorted() {
  const { by, down } = table.sort;
  if (by) {
    const value = COLUMNS.find((column) => column.name === by).value;
    table.rows.sort((a, b) => {
      const [one, two] = [value(a), value(b)];
      const order = one < two ? -1 : one > two ? 1 : a - b;
      return down ? -order : order;
    });
  } else table.rows.sort((a, b) => a - b);
  table.at = 0;
  table.parts.body.scrollTop = 0;
  summarised();
  headings();
  visible();
}

function summarised() {
  const { rows } = table;
  const valid = rows.filter((row) => known(cols.reward[row]));
  const successes = valid.filter(REWARDS.success).length;
  const of = rows.length === numListed ? "" : ` of ${whole(numListed)}`;
  const drawn = episodes.total > numListed ? `, drawn from ${whole(episodes.total)}` : "";
  table.parts.summary.textContent = `${plural(rows.length, "episode")}${of}${drawn}${valid.length ? ` · success ${percent(successes / valid.length)} · mean reward ${fixed(sum(valid.map((row) => cols.reward[row])) / valid.length, 3)}` : ""}`;
}

function headings() {
  const { by, down } = table.sort;
  table.parts.head.replaceChildren(...COLUMNS.map((column) => h("div", {
    role: "columnheader", class: `${column.numeric ? "numeric" : ""} ${column.minor ? "minor" : ""}`, "aria-sort": by === column.name ? (down ? "descending" : "ascending") : "none" },
    h("button", { type: "button", on: { click: () => {
      table.sort = by !== column.name ? { by: column.name, down: Boolean(column.numeric) } : down === Boolean(column.numeric) ? { by: column.name, down: !down } : { by: null, down: false };
      sorted();
    } } }, column.name, by === column.name ? (down ? " ↓" : " ↑") : ""))));
}

function visible() {
  const { body, space } = table.parts;
  space.style.height = `${table.rows.length * ROW}px`;
  const first = Math.max(0, Math.floor(body.scrollTop / ROW) - 5);
  const last = Math.min(table.rows.length, first + Math.ceil((body.clientHeight || 400) / ROW) + 10);
  space.replaceChildren(...table.rows.slice(first, last).map((row, place) => tableRow(row, first + place)));
  const active = table.rows.length ? `episode-${table.at}` : null;
  if (active) body.setAttribute("aria-activedescendant", active);
}

function tableRow(row, place) {
  return h("div", { role: "row", id: `episode-${place}`, class: "row", "aria-rowindex": place + 2, "aria-selected": String(place === table.at),
    vars: { top: `${place * ROW}px` }, on: { click: () => { select(place); show(row); } } },
    COLUMNS.map((column) => h("div", { role: "gridcell", class: `${column.numeric ? "numeric" : ""} ${column.minor ? "minor" : ""}` }, column.cell(row))));
}

function select(place) {
  const { body } = table.parts;
  table.at = Math.max(0, Math.min(table.rows.length - 1, place));
  const top = table.at * ROW;
  if (top < body.scrollTop) body.scrollTop = top;
  if (top + ROW > body.scrollTop + body.clientHeight) body.scrollTop = top + ROW - body.clientHeight;
  visible();
}

function tableKeys(event) {
  const page = Math.max(1, Math.floor(table.parts.body.clientHeight / ROW) - 1);
  const to = { ArrowDown: table.at + 1, ArrowUp: table.at - 1, PageDown: table.at + page, PageUp: table.at - page, Home: 0, End: table.rows.length - 1 }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    select(to);
  } else if (event.key === "Enter" && table.rows.length) show(table.rows[table.at]);
}

function episodeSection() {
  if (!numListed) return null;
  const parts = table.parts;
  parts.summary = h("p", { class: "summary", "aria-live": "polite" });
  parts.head = h("div", { role: "row", class: "row head" });
  parts.space = h("div", { class: "space", role: "rowgroup" });
  parts.body = h("div", { class: "rows", tabindex: "0", role: "grid", "aria-label": "Episodes: arrow keys choose one, Enter opens it", "aria-rowcount": numListed + 1, on: { keydown: tableKeys, scroll: visible } }, parts.space);
  parts.viewer = h("article", { class: "viewer", id: "viewer", tabindex: "-1", hidden: true });
  const detailed = Object.keys(data.details).length;
  const lead = `${plural(episodes.total, "episode")}; ${whole(detailed)} of them token by token, drawn evenly over tasks and ends (seed ${data.notes.seed}).`;
  return section("episodes", "Episodes", lead, notes(), filters(), parts.summary, h("div", { class: "table" }, parts.head, parts.body), parts.viewer);
}

function notes() {
  const { notes: found } = data;
  const lines = [found.tokenizer, found.numOmitted && `${plural(found.numOmitted, "drawn episode")} left out to keep this file small`,
    ...found.unreadable, !found.numKeptBatches && "no batch was kept: the learner’s log-probabilities and advantages are not known"].filter(Boolean);
  return lines.length ? h("ul", { class: "notes" }, lines.map((line) => h("li", {}, line))) : null;
}
