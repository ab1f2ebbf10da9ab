// The picture of the cart on a canvas, in the colours of the page.
import { FARTHEST_POSITION } from "./cartpole.js";

const METRES_SEEN = 2.3 * FARTHEST_POSITION;  // the whole track and a margin
const POLE_METRES = 1.0;

/** Draws a state [position, velocity, angle, angular velocity] at the canvas's size on screen. */
export function draw(canvas, [position, , angle]) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const sharpness = window.devicePixelRatio;
  canvas.width = width * sharpness;
  canvas.height = height * sharpness;
  const pen = canvas.getContext("2d");
  const colour = (name) => getComputedStyle(canvas).getPropertyValue(name).trim();
  pen.scale(sharpness, sharpness);
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
