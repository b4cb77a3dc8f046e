// Numbers as people read them.

const MINUS = "\u2212";

const signed = (text) => text.replace("-", MINUS);

const fixed = (value, digits) => signed(value.toFixed(digits));

function number(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return signed(value.toExponential(1).replace(".0e", "e").replace("e+", "e"));
  if (size >= 1e5) {
    const [unit, scale] = size >= 1e9 ? ["G", 1e9] : size >= 1e6 ? ["M", 1e6] : ["k", 1e3];
    return signed(`${Number((value / scale).toPrecision(3))} ${unit}`);
  }
  return signed(whole(Number.isInteger(value) ? value : Number(value.toPrecision(3))));
}

// Digits in threes where there are five or more of them.
const whole = (value) => (Math.abs(value) < 1e4 ? String(value) : value.toString().replace(/\B(?=(\d{3})+(\.|$))/g, "\u202f"));

const percent = (value, digits = 1) => (known(value) ? `${fixed(100 * value, digits)} %` : "–");

const points = (value) => `${value < 0 ? MINUS : "+"}${Math.abs(100 * value).toFixed(1)}`;

function seconds(value) {
  if (!known(value)) return "–";
  if (value < 0.1) return `${number(1000 * value)} ms`;
  if (value < 100) return `${fixed(value, 1)} s`;
  const [unit, part, size] = value < 6000 ? ["min", "s", 1] : ["h", "min", 60];
  const parts = Math.round(value / size);
  return `${Math.floor(parts / 60)} ${unit} ${String(parts % 60).padStart(2, "0")} ${part}`;
}

const words = (name) => name.replaceAll("_", " ");

const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

const UNITS = {
  percent: { show: (v) => percent(v), tick: (v) => `${Number((100 * v).toPrecision(6))} %` },
  seconds: { show: seconds, tick: (v) => (v === 0 ? "0" : v < 1 ? `${Number((1000 * v).toPrecision(4))} ms` : `${number(v)} s`) },
  number: { show: number, tick: number },
};
