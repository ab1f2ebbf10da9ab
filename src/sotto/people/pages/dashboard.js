// The operator's page asks v1/operator every five seconds and shows the response.
import { chart } from "./chart.js";
import { Operator } from "./client.js";
import { counted, duration, element, number, onSignIn, row, say, sayFailure } from "./common.js";

const EVERY_MILLISECONDS = 5000;
let operator, returns = [];

const text = (id, content) => { element(id).textContent = content; };

function bar(id, value, most) {
  const drawable = Number.isFinite(value) && most > 0;  // an infinite epsilon comes as text
  element(id).hidden = !drawable;
  if (drawable) Object.assign(element(id), { max: most, value });
}

function show(state) {
  text("name", state.name);
  text("version", number(state.version));
  text("horizon", `of ${counted(state.horizon, "release")} made`);
  bar("version-bar", state.version, state.horizon);
  text("losses", `${counted(state.releases_lost, "release")} lost; ` +
    `${counted(state.empty_slots, "place")} stayed empty.`);
  showBudget(state.budget);
  text("enrolled", number(state.people.enrolled));
  text("took-part", `${number(state.people.took_part)} took part, ` +
    `${number(state.people.withdrew)} withdrew.`);
  showUpdater(state.health);
  showRelease(state);
  if (JSON.stringify(returns) !== JSON.stringify(state.returns)) showReturns(state.returns);
  text("updated", new Date().toLocaleTimeString("en-GB"));
}

function showBudget({ epsilon, delta, spent, planned }) {
  text("spent", number(spent));
  text("epsilon", `of epsilon ${number(epsilon)} spent`);
  bar("spent-bar", spent, epsilon);
  text("planned", `All releases together: epsilon ${number(planned)}, at delta ${number(delta)}.`);
}

function showUpdater({ updater, last_update_seconds: seconds }) {
  text("updater", updater);
  element("updater").classList.toggle("bad", updater !== "working");
  text("last-update", seconds === null ? "It has made no update yet." :
    `Last update ${duration(seconds)} ago.`);
}

function showRelease({ state, release }) {
  const { number: index, slots, taken, given, expired, withdrawn, seconds_left: left } = release;
  text("release", state === "finished" ? "The campaign is finished" : `Release ${number(index)}`);
  text("given", `${number(given)} of ${counted(slots, "place")} given`);
  bar("given-bar", given, slots);
  const deadline = left === null ? "The clock starts with the first place taken." :
    `At most ${duration(left)} left.`;
  text("settled", `${number(taken)} taken, ${number(expired)} expired, ${number(withdrawn)} ` +
    `withdrawn. ${state === "finished" ? "" : deadline}`);
}

function showReturns(found) {
  returns = found;
  element("no-returns").hidden = returns.length > 0;
  element("returns-details").hidden = returns.length === 0;
  element("returns").replaceChildren(...returns.map((one) => {
    const cells = row([number(one.version), number(one.return), number(one.error)]);
    for (const cell of cells.querySelectorAll("td")) cell.className = "number";
    return cells;
  }));
  drawChart();
}

function drawChart() {
  const width = element("chart").clientWidth;
  element("chart").replaceChildren(...(returns.length === 0 || width === 0 ? [] :
    [chart(returns, width)]));
}

async function repeat() {
  try {
    show(await operator.state());
    if (element("message").classList.contains("bad")) say("");
  } catch (error) {
    sayFailure(error);
    if (error.status === 401 || error.status === 403) return;  // the token is good no longer
  }
  setTimeout(repeat, EVERY_MILLISECONDS);
}

async function enrol(event) {
  event.preventDefault();
  element("enrol-button").disabled = true;
  try {
    const { tokens } = await operator.enrol(element("count").valueAsNumber);
    element("tokens").value = tokens.join("\n");
    element("tokens-card").hidden = false;
    say(`${counted(tokens.length, "token")} made.`, false, "enrolled-message");
    element("tokens").focus();
    element("tokens").select();
  } catch (error) {
    sayFailure(error, "enrolled-message");
  }
  element("enrol-button").disabled = false;
}

onSignIn("The operator's token", "Show", element("state"), async (token) => {
  operator = new Operator(token);
  show(await operator.state());
  say("");
  setTimeout(repeat, EVERY_MILLISECONDS);
});
element("enrol").addEventListener("submit", enrol);
new ResizeObserver(drawChart).observe(element("chart"));
