// Pictures of the worlds on a canvas, in the colours of the page.
import { FARTHEST_POSITION } from "./cartpole.js";
import { HIGHEST, LOWEST, POINTS, TARGET } from "./dosing.js";

const METRES_SEEN = 2.3 * FARTHEST_POSITION;  // the whole track and a margin
const POLE_METRES = 1.0;

/** Empties a canvas, which gets its size on screen. */
function emptied(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const sharpness = window.devicePixelRatio;
  canvas.width = width * sharpness;
  canvas.height = height * sharpness;
  const pen = canvas.getContext("2d");
  pen.scale(sharpness, sharpness);
  const colour = (name) => getComputedStyle(canvas).getPropertyValue(name).trim();
  return { pen, width, height, colour };
}

/** Draws a state [position, velocity, angle, angular velocity] of a cart. */
export function drawCart(canvas, [position, , angle]) {
  const { pen, width, height, colour } = emptied(canvas);
  const metre = Math.min(width / METRES_SEEN, height / 1.9);
  const ground = height - 0.35 * metre;

  pen.lineWidth = 2;
  pen.strokeStyle = colour("--soft");
  pen.beginPath();
  pen.moveTo(0, ground);
  pen.lineTo(width, ground);
  for (const end of [-FARTHEST_POSITION, FARTHEST_POSITION]) {
    pen.moveTo(width / 2 + end * metre, ground - 8);
    pen.lineTo(width / 2 + end * metre, ground + 8);
  }
  pen.stroke();

  pen.translate(width / 2 + position * metre, ground);
  pen.fillStyle = colour("--ink");
  pen.beginPath();
  pen.roundRect(-0.25 * metre, -0.22 * metre, 0.5 * metre, 0.18 * metre, 4);
  pen.fill();
  for (const wheel of [-0.14, 0.14]) {
    pen.beginPath();
    pen.arc(wheel * metre, -0.03 * metre, 0.05 * metre, 0, 2 * Math.PI);
    pen.fill();
  }
  pen.translate(0, -0.18 * metre);
  pen.rotate(angle);
  pen.lineCap = "round";
  pen.lineWidth = Math.max(4, 0.08 * metre);
  pen.strokeStyle = colour("--good");
  pen.beginPath();
  pen.moveTo(0, 0);
  pen.lineTo(0, -POLE_METRES * metre);
  pen.stroke();
}

/** Draws the blood glucose (mg/dL) at the points of a day so far, and the band it should be in. */
export function drawDay(canvas, glucose) {
  const { pen, width, height, colour } = emptied(canvas);
  const left = 84;  // the labels are there
  const x = (point) => left + ((width - left) * point) / (POINTS - 1);
  const y = (value) => height * (1 - (value - 40) / 110);  // from 40 to 150 mg/dL
  pen.font = "13px system-ui, sans-serif";
  pen.fillStyle = colour("--soft");
  pen.strokeStyle = colour("--line");
  for (const value of [LOWEST, TARGET, HIGHEST]) {
    pen.beginPath();
    pen.moveTo(0, y(value));
    pen.lineTo(width, y(value));
    pen.stroke();
    pen.fillText(`${value} mg/dL`, 8, y(value) - 5);
  }
  pen.lineWidth = 2.5;
  pen.lineJoin = "round";
  pen.strokeStyle = colour("--good");
  pen.beginPath();
  glucose.forEach((value, point) => pen.lineTo(x(point), y(value)));
  pen.stroke();
}
