// Returns with error bars as an SVG, which is made by DOM calls at the width of its place.
import { number } from "./common.js";

const HEIGHT = 260;
const MARGIN = { left: 52, right: 14, top: 12, bottom: 42 };
const TICKS = 5;

function shape(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Round numbers between two bounds, about TICKS of them. */
function ticks(low, high) {
  const rough = (high - low) / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i += 1) found.push(+(i * step).toFixed(9));
  return found;
}

/**
 * Draws the returns of versions.
 * @param {{version: number, return: number, error: ?number}[]} returns at least one, in order
 * @param {number} width pixels
 */
export function chart(returns, width) {
  const lowest = Math.min(...returns.map((one) => one.return - (one.error ?? 0)));
  const highest = Math.max(...returns.map((one) => one.return + (one.error ?? 0)));
  const margin = 0.08 * (highest - lowest) || 1;
  const [low, high] = [lowest - margin, highest + margin];
  const first = returns[0].version;
  const last = Math.max(returns.at(-1).version, first + 1);
  const across = width - MARGIN.left - MARGIN.right;
  const up = HEIGHT - MARGIN.top - MARGIN.bottom;
  const x = (version) => MARGIN.left + (across * (version - first)) / (last - first);
  const y = (value) => MARGIN.top + (up * (high - value)) / (high - low);
  const at = returns.map((one) => ({ ...one, x: x(one.version), y: y(one.return) }));

  const svg = shape("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
    "aria-label": `Return of ${returns.length} versions, the newest ${number(at.at(-1).return)}` });
  for (const value of ticks(low, high)) {
    svg.append(
      shape("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value),
        y2: y(value) }),
      shape("text", { class: "tick end", x: MARGIN.left - 8, y: y(value) + 4 }, number(value)),
    );
  }
  const bottom = HEIGHT - MARGIN.bottom;
  for (const version of ticks(first, last).filter(Number.isInteger)) {
    svg.append(shape("text", { class: "tick middle", x: x(version), y: bottom + 18 },
      number(version)));
  }
  svg.append(shape("text", { class: "tick middle", x: MARGIN.left + across / 2, y: bottom + 36 },
    "Version"));
  svg.append(shape("polyline", { class: "curve",
    points: at.map((one) => `${one.x},${one.y}`).join(" ") }));
  for (const one of at) {
    if (one.error !== null) svg.append(errorBar(one, y));
    const dot = shape("circle", { class: "dot", cx: one.x, cy: one.y, r: 4 });
    const error = one.error === null ? "" : ` ± ${number(one.error)}`;
    dot.append(shape("title", {}, `Version ${one.version}: ${number(one.return)}${error}`));
    svg.append(dot);
  }
  return svg;
}

function errorBar(one, y) {
  const [top, bottom] = [y(one.return + one.error), y(one.return - one.error)];
  const end = (height) => `M${one.x - 4},${height}H${one.x + 4}`;
  const d = `M${one.x},${top}V${bottom}${end(top)}${end(bottom)}`;
  return shape("path", { class: "error", d });
}
