"use strict";

const EVERY_MS = 2000;
let before = null;

function fill(id, rows) {
  const body = document.querySelector(`#${id} tbody`);
  body.replaceChildren(...rows.map(([cells, kind]) => {
    const row = document.createElement("tr");
    if (kind) row.className = kind;
    for (const cell of cells) row.insertCell().textContent = String(cell);
    return row;
  }));
}

function seconds(value) {
  if (value < 1) return `${(1000 * value).toFixed(0)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  return `${(value / 60).toFixed(0)} min`;
}

function rate(name, task, now) {
  const earlier = before && before.tasks[name];
  if (!earlier || now <= before.now) return "";
  return ((task.counts.num_turns - earlier.counts.num_turns) / (now - before.now)).toFixed(1);
}

function show(view) {
  const names = Object.keys(view.tasks).sort();
  fill("tasks", names.map((name) => {
    const task = view.tasks[name], counts = task.counts;
    const workers = Object.entries(task.workers).map(([status, n]) => `${n} ${status}`).join(", ") || "none";
    const mean = counts.num_turns ? seconds(counts.turn_s / counts.num_turns) : "";
    return [[name, workers, `${task.num_taken}/${task.capacity}`, task.num_sessions, task.num_waiting,
      rate(name, task, view.now), counts.num_turns, mean], task.workers.ALIVE ? "" : "bad"];
  }));
  fill("ends", names.flatMap((name) => [
    ...Object.entries(view.tasks[name].counts.failures).map(([reason, n]) => [[name, `call failed: ${reason}`, n], "bad"]),
    ...Object.entries(view.tasks[name].counts.ends).map(([how, n]) => [[name, `session ended: ${how}`, n], ""]),
  ]));
  fill("workers", view.workers.map((worker) => [[worker.id, worker.task, worker.address,
    worker.is_draining ? `${worker.status}, draining` : worker.status, `${worker.taken}/${worker.capacity}`,
    `${seconds(worker.age_s)} ago`], worker.status === "ALIVE" ? (worker.is_draining ? "dim" : "") : "bad"]));
  const now = Date.now() / 1000;
  fill("sessions", view.sessions.map((session) => [[session.id, session.task, session.index, session.worker,
    session.state, seconds(Math.max(0, now - session.started_at)), seconds(Math.max(0, now - session.used_at))],
    session.state === "cancelling" ? "dim" : ""]));
  document.querySelector("#listed").textContent = view.num_sessions > view.sessions.length
    ? `${view.num_sessions} sessions, of which the ${view.sessions.length} idle longest are listed` : "";
  before = view;
}

async function refresh() {
  const state = document.querySelector("#state");
  try {
    const answer = await fetch("/overview");
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const view = await answer.json();
    show(view);
    state.textContent = `live; event loop lag p99 ${seconds(view.lag_p99_s)}`;
    state.className = "live";
  } catch (error) {
    state.textContent = `not reachable: ${error.message}`;
    state.className = "lost";
  }
  setTimeout(refresh, EVERY_MS);
}

refresh();
