// Elements out of plain values. Text only ever becomes a text node: nothing here reads markup.

const data = JSON.parse(document.getElementById("data").textContent);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

const s = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const colour = (number) => `var(--c${number % 8})`;

const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

// The smallest and the largest of what is known, without spreading a long list over the stack.
function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!known(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? null : [low, high];
}

// The mean of each value and up to `width` - 1 known ones before it.
function smoothed(values, width = 5) {
  const recent = [];
  return values.map((value) => {
    if (!known(value)) return null;
    recent.push(value);
    if (recent.length > width) recent.shift();
    return sum(recent) / recent.length;
  });
}
