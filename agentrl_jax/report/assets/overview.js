// What a person should know after ten seconds: did it learn, where did the time go, what went wrong.

function header() {
  const starts = run.starts;
  const first = starts[0] || {};
  const facts = [first.time && first.time.slice(0, 16).replace("T", " "), first.devices, first.versions && `agentrl_jax ${first.versions.agentrl_jax}`];
  return [
    h("div", { class: "brand" }, h("span", {}, "agentrl_jax"), h("button", { type: "button", class: "theme", title: "Light or dark (t)", "aria-label": "Switch between light and dark", on: { click: toggleTheme } }, "◐")),
    h("h1", {}, run.name, other && h("small", {}, " and ", other.name)),
    h("p", { class: "facts" }, facts.filter(Boolean).join(" · ")),
  ];
}

// The newest evaluation of each env, mode and step.
function evaluationsOf(of, env, mode) {
  const found = new Map();
  for (const one of of.evaluations) if (one.env === env && one.mode === mode && known(one.success_rate)) found.set(one.step, one);
  return [...found.values()].sort((a, b) => a.step - b.step);
}

// The difference of two rates and its 95 % interval (Newcombe), from their own intervals.
function gain(before, after) {
  const difference = after.success_rate - before.success_rate;
  const below = Math.hypot(after.success_rate - after.success_low, before.success_high - before.success_rate);
  const above = Math.hypot(after.success_high - after.success_rate, before.success_rate - before.success_low);
  return { difference, low: difference - below, high: difference + above };
}

function verdict(of, env) {
  for (const mode of ["sampled", "greedy"]) {
    const found = evaluationsOf(of, env, mode);
    if (found.length > 1 && found[0].step < found[found.length - 1].step) {
      const [before, after] = [found[0], found[found.length - 1]];
      const change = gain(before, after);
      const word = change.low > 0 ? "learned" : change.high < 0 ? "got worse" : "no clear change";
      return { before: before.success_rate, after: after.success_rate, change, word,
        basis: `held-out tasks, ${mode}, ${before.num_valid} episodes each, after ${plural(after.step, "step")}` };
    }
  }
  const rates = (of.success[env] || []).filter(known);
  if (rates.length < 2) return null;
  const ends = [rates.slice(0, 5), rates.slice(-5)].map((part) => sum(part) / part.length);
  return { before: ends[0], after: ends[1], change: null, word: "in training", basis: `training episodes, first and last ${Math.min(5, rates.length)} steps; not evaluated` };
}

function learnedTiles(of, suffix) {
  return of.envs.map((env) => {
    const found = verdict(of, env);
    if (!found) return null;
    const tone = { learned: "good", "got worse": "bad" }[found.word] || "plain";
    return h("div", { class: "tile", vars: { "--ink": envColour(env) } },
      h("h3", {}, h("span", { class: "dot" }), env, suffix && h("small", {}, ` ${suffix}`)),
      h("p", { class: "figure" }, percent(found.before, 0), h("span", { class: "arrow", "aria-label": "to" }, "→"), h("b", {}, percent(found.after, 0))),
      h("p", { class: `verdict ${tone}` }, found.word,
        found.change && h("span", {}, ` ${points(found.change.difference)} points `, h("span", { class: "quiet" }, `[${points(found.change.low)}, ${points(found.change.high)}]`))),
      h("p", { class: "basis" }, found.basis));
  });
}

const TIME_PARTS = [
  { name: "waiting for groups", column: "collect_s", colour: "var(--t-wait)" },
  { name: "learning", column: "learn_s", colour: "var(--t-learn)" },
  { name: "publishing", column: "publish_s", colour: "var(--t-publish)" },
  { name: "between steps", column: "other_s", colour: "var(--t-other)" },
];
const EPISODE_PARTS = [
  { name: "generation", column: "engine_s", colour: "var(--t-engine)" },
  { name: "environment", column: "env_s", colour: "var(--t-env)" },
  { name: "queue and rest", column: "other_s", colour: "var(--t-other)" },
];

function timeTile(of, suffix) {
  const totals = (parts, columns) => parts.map((part) => ({ ...part, value: sum(columns[part.column] || []) }))
    .map((part) => ({ ...part, shown: seconds(part.value) }));
  const loop = shares(totals(TIME_PARTS, of.steps), { label: "Time of the learner's loop" });
  if (!loop) return null;
  const episodes = shares(totals(EPISODE_PARTS, of.episodeTimes), { label: "Time of all episodes" });
  return h("div", { class: "tile wide" }, h("h3", {}, "Where the time went", suffix && h("small", {}, ` ${suffix}`)),
    h("p", { class: "basis" }, "The learner’s loop, by the clock"), loop,
    episodes && h("p", { class: "basis" }, "All episodes, added up: they run side by side"), episodes);
}

function runTile(of, suffix) {
  const steps = of.steps.step;
  const last = steps.length - 1;
  const wanted = of.config.max_steps;
  const rates = of.steps.loss_tokens_per_s.filter(known);
  const facts = [
    ["steps", `${whole(steps.length ? steps[last] : 0)}${known(wanted) ? ` of ${whole(wanted)}` : ""}`],
    of.numEpisodes && ["episodes", whole(of.numEpisodes)],
    of.steps.step_s.some(known) && ["reinforcement learning", seconds(sum(of.steps.step_s))],
    rates.length && ["sampled tokens", `${number(sum(rates) / rates.length)} /s`],
    steps.length && known(of.steps.version[last]) && ["policy version", whole(of.steps.version[last] + (of.steps.is_applied[last] ? 1 : 0))],
    of.resumes.length && ["resumed", plural(of.resumes.length, "time")],
  ];
  return h("div", { class: "tile" }, h("h3", {}, "The run", suffix && h("small", {}, ` ${suffix}`)),
    h("dl", {}, facts.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

function warningBox() {
  if (!run.warnings.length) return null;
  const groups = new Map();
  for (const one of run.warnings) groups.set(one.name, [...(groups.get(one.name) || []), one]);
  return h("div", { class: "warnings", role: "note" }, h("h3", {}, plural(run.warnings.length, "warning")),
    h("ul", {}, [...groups.values()].map((found) => {
      const last = found[found.length - 1];
      return h("li", {}, h("b", {}, words(last.name)), ` (${found.length > 1 ? `${found.length} times, last at ` : "at "}step ${last.step}): ${last.text}`);
    })));
}

function overview() {
  const rows = (other ? [run, other] : [run]).map((of) => {
    const suffix = other && of.name;
    return h("div", { class: "tiles" }, learnedTiles(of, suffix), runTile(of, suffix), timeTile(of, suffix));
  });
  return section("overview", "Overview", null, warningBox(), rows);
}
