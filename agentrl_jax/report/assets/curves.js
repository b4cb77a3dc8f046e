// Learning: success by task with evaluations, and the health of the policy behind it.

// The same figures of both runs; the other's lines are dashed.
function ofBoth(make) {
  return [...make(run, "", "line"), ...(other ? make(other, `, ${other.name}`, "dash") : [])];
}

function evaluationPoints(of, env, mode, suffix, ink) {
  const found = evaluationsOf(of, env, mode).map((one) => ({ x: one.step, y: one.success_rate, low: one.success_low, high: one.success_high, hollow: mode === "greedy" }));
  return { name: `held out, ${mode}${suffix}`, kind: "points", colour: ink, points: found };
}

function successChart(env) {
  const series = ofBoth((of, suffix, kind) => {
    const rates = of.success[env] || [];
    const ink = suffix ? "var(--other)" : envColour(env);
    return [
      !suffix && { name: "each step", kind: "thin", colour: ink, x: of.steps.step, y: rates },
      { name: `training${suffix}`, kind, colour: ink, x: of.steps.step, y: smoothed(rates) },
      evaluationPoints(of, env, "sampled", suffix, ink),
      evaluationPoints(of, env, "greedy", suffix, ink),
    ].filter(Boolean);
  });
  return chart({ title: `${env}: success`, note: "mean of five steps; evaluations with 95 % intervals", unit: "percent", range: [-0.02, 1.02], series, height: 250, marks: run.resumes });
}

function figureChart(title, note, names, unit = "number", options = {}) {
  const series = ofBoth((of, suffix, kind) => names.map(([column, name], place) => ({
    name: `${name}${suffix}`, kind, colour: names.length > 1 ? colour(place) : suffix ? "var(--other)" : "var(--accent)", x: of.steps.step, y: of.steps[column] })));
  return chart({ title, note, unit, series, height: 180, ...options });
}

function ratioBand() {
  const columns = run.steps;
  const ink = "var(--accent)";
  return chart({
    title: "Importance ratio", note: "learner against sampling engine: 1st to 99th percentile, median", height: 180,
    series: [
      { name: "1 % … 99 %", kind: "band", colour: ink, x: columns.step, y: columns.ratio_p01, top: columns.ratio_p99 },
      { name: "median", kind: "line", colour: ink, x: columns.step, y: columns.ratio_p50 },
    ],
  });
}

function warmUpCharts(of) {
  const phases = [...new Set(of.warmUp.map((one) => one.phase))];
  const begins = of.warmUp.reduce((found, one, place) => (one.step < (of.warmUp[place - 1] || { step: 0 }).step ? place : found), 0);
  return phases.map((phase) => {
    const found = of.warmUp.slice(phase === of.warmUp[of.warmUp.length - 1].phase ? begins : 0).filter((one) => one.phase === phase);
    return chart({ title: `Warm-up: ${words(phase)}`, note: "supervised loss before reinforcement learning", xLabel: "warm-up step", height: 180, hasZero: true,
      series: [{ name: "loss", kind: "line", colour: "var(--accent)", x: found.map((one) => one.step), y: found.map((one) => one.loss) }] });
  });
}

function learning() {
  const envs = [...ENV_COLOURS.keys()].filter((env) => run.success[env]);
  const validation = run.validation.length ? chart({ title: "Held-out loss", height: 180, series: [
    { name: "held out", kind: "line", colour: "var(--accent)", x: run.validation.map((one) => one.step), y: run.validation.map((one) => one.mean_loss) }] }) : null;
  return section("learning", "Learning", null,
    grid(envs.map(successChart)),
    grid(
      figureChart("Reward", "mean of the valid episodes, penalties included", [["reward_mean", "reward"]]),
      figureChart("Groups without a signal", "all members were rewarded alike: nothing to learn from", [["zero_signal_frac", "without signal"]], "percent", { range: [0, 1.02] }),
      validation));
}

function health() {
  return section("policy", "The policy’s health", null, grid(
    figureChart("Entropy", "nats a token", [["entropy", "entropy"]], "number", { hasZero: true }),
    figureChart("Divergence from the sampling policy", "nats a token, k3 estimate", [["behavior_kl", "divergence"]], "number", { hasZero: true }),
    ratioBand(),
    figureChart("Clipped tokens", "held back by a bound of the loss", [["clip_low_frac", "low"], ["clip_high_frac", "high"]], "percent", { hasZero: true }),
    figureChart("Gradient norm", null, [["grad_norm", "norm"]], "number", { hasZero: true }),
    figureChart("Loss", null, [["loss", "loss"]]),
    figureChart("Engine against learner", "divergence at the same version, nats a token: should be almost 0", [["mismatch_kl", "divergence"]], "number", { hasZero: true }),
    figureChart("Calls that could not be read", null, [["call_error_frac", "share of calls"]], "percent", { hasZero: true }),
    warmUpCharts(run)));
}
