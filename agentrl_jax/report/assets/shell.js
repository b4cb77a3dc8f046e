// The frame: sections with a place in the navigation, tables, and the choice of light or dark.

const run = data.run;
const other = data.compare;

const ENV_COLOURS = new Map([...new Set([...run.envs, ...(other ? other.envs : []), ...data.episodes.names.env])].sort().map((env, place) => [env, colour(place)]));

const envColour = (env) => ENV_COLOURS.get(env) || colour(7);

const INFRASTRUCTURE = new Set(["env_timeout", "env_error", "engine_error", "cancelled"]);
const END_ORDER = ["completed", "max_turns", "context_limit", "turn_truncated", "invalid_action", "validation_failed", "wall_timeout",
  "env_timeout", "env_error", "engine_error", "cancelled"];

const endColour = (end) => `var(--end-${end.replaceAll("_", "-")}, var(--c7))`;

function section(id, title, lead, ...content) {
  const there = content.flat().filter(Boolean);
  if (!there.length) return null;
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), lead && h("p", { class: "lead" }, lead), there);
}

function grid(...figures) {
  const there = figures.flat().filter(Boolean);
  return there.length ? h("div", { class: there.length > 2 && there.length !== 4 ? "figures small" : "figures" }, there) : null;
}

// heads: {text, numeric}. rows: lists of texts or elements.
function plainTable(heads, rows, caption) {
  return h("div", { class: "scroll" }, h("table", {}, caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: head.numeric && "numeric" }, head.text)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, place) => h("td", { class: heads[place].numeric && "numeric" }, cell)))))));
}

function navigation(sections) {
  return h("nav", { "aria-label": "Sections" }, sections.map((one) =>
    h("a", { href: `#${one.id}` }, one.querySelector("h2").textContent)));
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
}

// By dotted names, what settings say.
function flat(values, prefix = "") {
  return Object.entries(values || {}).flatMap(([name, value]) =>
    value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length
      ? flat(value, `${prefix}${name}.`) : [[prefix + name, JSON.stringify(value)]]);
}
