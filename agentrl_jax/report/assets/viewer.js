// One episode, turn by turn: what came in, what was sampled, and what is known of every sampled token.

const viewer = { row: null, mode: "engine" };

const MODES = {
  plain: { label: "plain" },
  engine: { label: "engine log-prob", of: (turn, i) => at(turn.behavior, i), hue: "hot", full: 4, legend: "0 … −4 nats or less" },
  learner: { label: "learner log-prob", of: (turn, i) => at(turn.learner, i), hue: "hot", full: 4, legend: "0 … −4 nats or less" },
  ratio: { label: "learner − engine", of: (turn, i) => difference(turn, i), diverging: true, full: 0.5, legend: "−0.5 … +0.5 nats" },
  advantage: { label: "advantage", of: (turn, i) => each(turn.advantage, i), diverging: true, full: 2, legend: "−2 … +2" },
  version: { label: "policy version", version: true },
};

const each = (values, i) => (Array.isArray(values) ? values[i] : values);
const at = (values, i) => (values && known(values[i]) ? values[i] * data.notes.unit : undefined);

function difference(turn, i) {
  const [learner, engine] = [at(turn.learner, i), at(turn.behavior, i)];
  return known(learner) && known(engine) ? learner - engine : undefined;
}

function versionOf(turn, i) {
  const span = turn.versions.find(([, start, end]) => i >= start && i < end);
  return span ? span[0] : undefined;
}

function show(row) {
  viewer.row = row;
  const { viewer: place } = table.parts;
  place.hidden = false;
  place.replaceChildren(...viewerHead(row), ...(hasDetail(row) ? viewerTurns(data.details[row], row) : [missing(row)]));
  history.replaceState(null, "", `#episode=${idOf(row)}`);
  place.focus({ preventScroll: true });
  place.scrollIntoView({ block: "start" });
}

function closeViewer() {
  table.parts.viewer.hidden = true;
  viewer.row = null;
  history.replaceState(null, "", "#episodes");
  table.parts.body.focus({ preventScroll: true });
  document.getElementById("episodes").scrollIntoView({ block: "start" });
}

// The next or previous episode of the table that has token detail; any if none has.
function step(by) {
  const here = table.rows.indexOf(viewer.row);
  const start = here < 0 ? (by > 0 ? -1 : table.rows.length) : here;
  const some = table.rows.some(hasDetail);
  for (let place = start + by; place >= 0 && place < table.rows.length; place += by) {
    if (some && !hasDetail(table.rows[place])) continue;
    select(place);
    show(table.rows[place]);
    return;
  }
}

function viewerHead(row) {
  const fate = fateOf(row);
  const facts = [
    ["reward", rewardText(cols.reward[row])],
    cols.env_reward[row] !== cols.reward[row] && ["from the environment", rewardText(cols.env_reward[row])],
    ["step", whole(cols.step[row])], ["turns", whole(cols.turns[row])],
    ["tokens", `${whole(cols.loss_tokens[row])} sampled of ${whole(cols.tokens[row])}`],
    ["time", `${seconds(cols.wall_s[row])}: engine ${seconds(cols.engine_s[row])}, environment ${seconds(cols.env_s[row])}`],
    fate && fate !== "consumed" && ["its group", `was ${fate}`],
  ].filter(Boolean);
  const error = episodes.errors[row];
  return [
    h("div", { class: "viewer-head" },
      h("h3", {}, idOf(row), h("span", { class: "tag", vars: { "--ink": envColour(envOf(row)) } }, `${envOf(row)} ${cols.index[row]}`), h("span", { class: "tag", vars: { "--ink": endColour(endOf(row)) } }, words(endOf(row)))),
      h("div", { class: "buttons" },
        h("button", { type: "button", title: "previous with token detail (k)", on: { click: () => step(-1) } }, "↑ previous"),
        h("button", { type: "button", title: "next with token detail (j)", on: { click: () => step(1) } }, "↓ next"),
        h("button", { type: "button", title: "close (Esc)", "aria-label": "close the episode", on: { click: closeViewer } }, "✕"))),
    h("dl", { class: "viewer-facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    error && h("pre", { class: "error" }, error),
  ].filter(Boolean);
}

// As a shell reads it back.
function quoted(text) {
  return /^[\w./~-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function missing(row) {
  return h("p", { class: "notice" }, "This report holds only the summary of this episode. To see it token by token: ",
    h("code", {}, `python -m agentrl_jax.report ${quoted(run.config.run_dir || "RUN_DIR")} --episode ${idOf(row)}`));
}

function viewerTurns(detail, row) {
  const available = Object.entries(MODES).filter(([, mode]) => mode.version || !mode.of || detail.turns.some((turn) => turn.pieces.some((_, i) => known(mode.of(turn, i)))));
  if (!available.some(([name]) => name === viewer.mode)) viewer.mode = available[0][0];
  const inspector = h("output", { class: "inspector" }, "Point at a token, or move with the arrow keys.");
  const turns = detail.turns.map((turn, place) => turnCard(turn, place, detail, inspector));
  const paint = () => {
    legendBox.textContent = MODES[viewer.mode].legend || "";
    turns.forEach((card, place) => painted(card, detail.turns[place]));
  };
  const legendBox = h("span", { class: "quiet" });
  const modes = h("div", { class: "modes", role: "radiogroup", "aria-label": "Colour tokens by" }, h("span", { class: "quiet" }, "colour by"),
    available.map(([name, mode]) => h("label", {}, h("input", { type: "radio", name: "mode", value: name, checked: name === viewer.mode, on: { change: () => { viewer.mode = name; paint(); } } }), h("span", {}, mode.label))), legendBox);
  const note = detail.hasBatch || fateOf(row) === "dropped" || fateOf(row) === "cancelled" || INFRASTRUCTURE.has(endOf(row)) ? null
    : h("p", { class: "notice" }, "Its batch was not read or not kept: no advantages, no log-probabilities of the learner.");
  paint();
  return [note, h("div", { class: "viewer-tools" }, modes, inspector), ...turns].filter(Boolean);
}

function turnCard(turn, place, detail, inspector) {
  const parts = [turn.engine.startsWith(turn.pool) ? turn.engine : `${turn.pool} engine ${turn.engine}`, `version ${[...new Set(turn.versions.map(([version]) => version))].join(", ")}`,
    plural(turn.pieces.length, "token"), turn.calls ? plural(turn.calls, "call") : null, turn.reward ? `reward ${rewardText(turn.reward)}` : null,
    typeof turn.advantage === "number" ? `advantage ${turn.advantage > 0 ? "+" : ""}${fixed(turn.advantage, 3)}${turn.signal ? "" : " (no signal)"}` : null,
    turn.finish === "length" ? "cut at its length" : null, turn.cached ? `${whole(turn.cached)} prompt tokens cached` : null].filter(Boolean);
  const isNewSegment = place > 0 && turn.segment !== detail.turns[place - 1].segment;
  const masked = new Set(turn.masked);
  const tokens = turn.pieces.map((piece, i) => h("span", { class: `token${masked.has(i) ? " masked" : ""}${piece === "" ? " empty" : ""}` }, piece.replaceAll("\n", "↵\n")));
  const box = h("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": `Turn ${place + 1}: sampled tokens` }, tokens);
  const inspect = (i) => {
    box.querySelector(".here")?.classList.remove("here");
    tokens[i].classList.add("here");
    box.at = i;
    inspector.replaceChildren(...tokenFacts(turn, i, masked));
  };
  box.addEventListener("pointerover", (event) => { const i = tokens.indexOf(event.target); if (i >= 0) inspect(i); });
  box.addEventListener("focus", () => inspect(box.at ?? 0));
  box.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: (box.at ?? 0) - 1, ArrowRight: (box.at ?? -1) + 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    inspect(Math.max(0, Math.min(tokens.length - 1, to)));
  });
  const card = h("section", { class: "turn", "aria-label": `Turn ${place + 1}` },
    isNewSegment && h("p", { class: "notice" }, "The prompt was rewritten here: a new segment begins."),
    contextBox(data.texts[turn.context], place),
    h("div", { class: `sampled ${turn.pool}` }, h("p", { class: "turn-head" }, h("b", {}, `Turn ${place + 1}`), h("span", {}, parts.join(" · "))), box,
      turn.callErrors.map((text) => h("p", { class: "call-error" }, `call not read: ${text}`))));
  card.tokens = tokens;
  return card;
}

function contextBox(text, place) {
  if (!text.trim()) return null;
  const label = place ? "environment" : "prompt";
  const read = text.replace(/^\n+/, "");
  const lines = read.split("\n").length;
  if (text.length < 700 && lines < 16) return h("div", { class: "context" }, h("span", { class: "who" }, label), h("pre", {}, read));
  return h("details", { class: "context", open: text.length < 2500 }, h("summary", {}, h("span", { class: "who" }, label), h("span", { class: "quiet" }, ` ${whole(text.length)} characters`)), h("pre", {}, read));
}

function tokenFacts(turn, i, masked) {
  const shown = (value) => (known(value) ? fixed(value, 4) : "–");
  const gap = difference(turn, i);
  const facts = [["token", JSON.stringify(turn.pieces[i])], ["engine", shown(at(turn.behavior, i))], ["learner", shown(at(turn.learner, i))],
    known(gap) && ["ratio", fixed(Math.exp(gap), 4)], turn.reference && ["reference", shown(at(turn.reference, i))],
    known(each(turn.advantage, i)) && ["advantage", fixed(each(turn.advantage, i), 4)],
    ["version", `${versionOf(turn, i) ?? "–"}${known(each(turn.lag, i)) ? `, ${each(turn.lag, i)} behind` : ""}`],
    [masked.has(i) ? "masked: does not count" : "counts in the loss", ""]].filter(Boolean);
  return facts.map(([name, value]) => h("span", {}, `${name} `, h("b", {}, value)));
}

function painted(card, turn) {
  const mode = MODES[viewer.mode];
  card.tokens.forEach((token, i) => {
    let ink = "";
    if (mode.version) ink = `color-mix(in srgb, ${colour(versionOf(turn, i) ?? 0)} 26%, transparent)`;
    else if (mode.of) {
      const value = mode.of(turn, i);
      if (known(value)) {
        const share = Math.min(1, Math.abs(value) / mode.full);
        const hue = mode.diverging ? (value < 0 ? "--down" : "--up") : "--hot";
        if (share > 0.01) ink = `color-mix(in srgb, var(${hue}) ${Math.round(62 * share)}%, transparent)`;
      }
    }
    token.style.background = ink;
  });
}
