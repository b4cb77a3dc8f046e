// The page: its sections in order, the keys that work everywhere, and links to episodes.

const KEYS = [["j, k", "next, previous episode with token detail"], ["c", "colour tokens by the next figure"], ["/", "to the filters"], ["t", "light or dark"],
  ["Esc", "close the episode"], ["Tab, arrows", "charts, tables and tokens: read their values"], ["?", "this list"]];

function helpDialog() {
  return h("dialog", { id: "help", "aria-label": "Keys" }, h("h2", {}, "Keys"), h("dl", {}, KEYS.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
}

function nextMode() {
  const inputs = [...document.querySelectorAll(".modes input")];
  if (!inputs.length) return;
  const to = inputs[(inputs.findIndex((input) => input.checked) + 1) % inputs.length];
  to.checked = true;
  to.dispatchEvent(new Event("change"));
}

function pageKeys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const act = {
    j: () => numListed && step(1),
    k: () => numListed && step(-1),
    c: nextMode,
    t: toggleTheme,
    "/": () => table.parts.env && table.parts.env.select.focus(),
    "?": () => document.getElementById("help").showModal(),
    Escape: () => viewer.row !== null && closeViewer(),
  }[event.key];
  if (!act || document.getElementById("help").open) return;
  event.preventDefault();
  act();
}

function openLinked() {
  const id = new URLSearchParams(location.hash.slice(1)).get("episode");
  if (!id) return false;
  for (let row = 0; row < numListed; row++) {
    if (idOf(row) === id) {
      const place = table.rows.indexOf(row);
      if (place >= 0) select(place);
      show(row);
      return true;
    }
  }
  return false;
}

function start() {
  const main = document.getElementById("main");
  const sections = [overview(), learning(), time(), staleness(), endings(), episodeSection(), health(), settings()].filter(Boolean);
  document.getElementById("top").append(...header(), navigation(sections));
  main.append(...sections, helpDialog());
  document.body.append(h("footer", {}, `Drawn from ${run.config.run_dir || run.name}. `, h("button", { type: "button", class: "link", on: { click: () => document.getElementById("help").showModal() } }, "Keys (?)")));
  if (numListed) filtered();
  document.addEventListener("keydown", pageKeys);
  addEventListener("hashchange", openLinked);
  if (!openLinked() && data.open.length) show(data.open[0]);
  document.documentElement.dataset.ready = "true";
}

start();
