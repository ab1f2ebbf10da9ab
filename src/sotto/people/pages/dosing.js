// Dosing-0 of this project: insulin for a person with type 1 diabetes, every ten minutes of a day.
import { normal, uniform } from "./policy.js";

export const LOWEST = 65, TARGET = 80, HIGHEST = 105;  // blood glucose, mg/dL
export const POINTS = 145;  // of a day: every ten minutes from 0 to 24 h
const MOST_INSULIN = 10;  // mU/min
const FIRST_DOSE = 3;
const MINUTES = 10;
const SUBSTEPS = 20;

// Constants of the body, as in DosingParams; rates are per minute.
const BASAL_GLUCOSE = 291;
const GLUCOSE_RETURN = 0.0317;
const REMOTE_DELAY = 0.0123;
const SENSITIVITY = 0.029;
const ELIMINATION = 0.09;
const GUT_ABSORPTION = 0.012;
const STOMACH_EMPTYING = 0.18;
const EATEN = 0.8 / 12;

// Disturbance by meals at each point of the day.
const MEALS = [
  ...Array(43).fill(1000),
  1259, 1451, 1632, 1632, 1468, 1314, 1240, 1187, 1139, 1116, 1099, 1085, 1077, 1071, 1066, 1061,
  1057, 1053, 1046, 1040, 1034, 1025, 1018, 1010, 1000, 993, 985, 976, 970, 964, 958, 954, 952,
  950, 950, 951, 1214, 1410, 1556, 1603, 1445, 1331, 1226, 1173, 1136, 1104, 1088, 1078, 1070,
  1066, 1063, 1061, 1059, 1056, 1052, 1048, 1044, 1037, 1030, 1024, 1014, 1007, 999, 989, 982,
  975, 967, 962, 957, 953, 951, 950, 1210, 1403, 1588, 1593, 1434, 1287, 1212, 1159, 1112, 1090,
  1075, 1064, 1059, 1057, 1056, 1056, 1056, 1055, 1054, 1052, 1049, 1045, 1041, 1033, 1027, 1020,
  1011, 1003, 996, 986,
];

/** Slopes of glucose, remote insulin, plasma insulin, two stages of absorption, and the gut. */
function slopes([glucose, remote, plasma, first, second, gut], insulin, meal) {
  return [
    GLUCOSE_RETURN * (BASAL_GLUCOSE - glucose) - SENSITIVITY * remote * glucose +
      EATEN * (GUT_ABSORPTION * gut + meal),
    REMOTE_DELAY * (plasma - remote),
    insulin - ELIMINATION * plasma,
    insulin - STOMACH_EMPTYING * first,
    STOMACH_EMPTYING * (first - second),
    STOMACH_EMPTYING * second - GUT_ABSORPTION * gut,
  ];
}

/** Ten minutes by the classical Runge-Kutta method, with one dose and one meal. */
function tenMinutes(body, insulin, meal) {
  const time = MINUTES / SUBSTEPS;
  const moved = (from, slope, by) => from.map((value, i) => value + by * slope[i]);
  for (let i = 0; i < SUBSTEPS; i += 1) {
    const k1 = slopes(body, insulin, meal);
    const k2 = slopes(moved(body, k1, time / 2), insulin, meal);
    const k3 = slopes(moved(body, k2, time / 2), insulin, meal);
    const k4 = slopes(moved(body, k3, time), insulin, meal);
    body = body.map((value, j) => value + (time / 6) * (k1[j] + 2 * k2[j] + 2 * k3[j] + k4[j]));
  }
  return body;
}

function randomBody() {
  return [LOWEST + (HIGHEST - LOWEST) * uniform(),
    ...[33.33, 33.33, 25, 25, 250].map((mean) => mean + 5 * normal())];
}

/** A person on one day. Nothing ends the day before its last point. */
export class Dosing {
  terminated = false;

  /** Starts ten minutes after the first dose, which is not chosen. */
  constructor(body = randomBody()) {
    this.point = 0;
    this.body = body;
    this.meals = [MEALS[0], MEALS[0]];  // now, and ten minutes ago
    this.glucose = [body[0]];  // at each point so far
    this.#goOn(FIRST_DOSE);
  }

  /** The nine numbers of the simulator, in single precision. */
  get observation() {
    const [meal, mealBefore] = this.meals;
    return [...this.body, meal, this.glucose.at(-2), mealBefore].map(Math.fround);
  }

  /** How many doses were chosen. */
  get steps() {
    return this.point - 1;
  }

  get over() {
    return this.point === POINTS - 1;
  }

  /** Gives a rate of insulin, [mU/min], for ten minutes; gives the reward. */
  step([insulin]) {
    if (this.over) throw new Error("This day is over; start another one.");
    this.#goOn(Math.min(Math.max(insulin, 0), MOST_INSULIN));
    const glucose = this.body[0];
    if (glucose < LOWEST || glucose > HIGHEST) return -1;
    return 1 - Math.tanh((0.1 * Math.abs(glucose - TARGET)) / 0.7) ** 2;
  }

  #goOn(insulin) {
    this.point += 1;
    this.meals = [MEALS[this.point], this.meals[0]];
    this.body = tenMinutes(this.body, insulin, this.meals[0]);
    this.glucose.push(this.body[0]);
  }
}
