// The page of budgets asks v1/budget every five seconds and shows the response. All text is inserted
// as text, never as HTML. The token is kept in this tab's session storage and nowhere else.
"use strict";

const STORED = "sotto-token";
const EVERY_MILLISECONDS = 5000;
const element = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en-GB");
const short = (value) => typeof value === "string" ? value : String(Number(value.toPrecision(4)));
let timer;

function say(text, bad) {
  const message = element("message");
  if (message.textContent !== text) message.textContent = text;
  message.classList.toggle("bad", bad);
}

function cell(row, content, className) {
  const made = document.createElement("td");
  if (typeof content === "string") made.textContent = content;
  else made.append(content);
  made.className = className;
  row.append(made);
}

function bar(given, allowed, name) {
  const made = document.createElement("progress");
  made.max = Math.max(allowed, 1);
  made.value = given;
  made.setAttribute("aria-label", `Answers given to ${name}`);
  return made;
}

function studentRow(student) {
  const row = document.createElement("tr");
  const name = document.createElement("th");
  name.scope = "row";
  name.textContent = student.name;
  row.append(name);
  const state = student.revoked ? "revoked" : student.remaining === 0 ? "spent" : "active";
  cell(row, bar(student.answered, student.queries, student.name), "bar");
  cell(row, number(student.answered), "number");
  cell(row, number(student.queries), "number");
  cell(row, number(student.remaining), "number");
  cell(row, short(student.epsilon), "number");
  row.title = `Given so far: epsilon ${short(student.spent_epsilon)} if that number was fixed ` +
    "in advance";
  cell(row, state, `state-${state}`);
  return row;
}

function show(budgets) {
  const total = budgets.total;
  element("total").hidden = total === null;
  if (total !== null) {
    element("total-left").textContent = number(total.remaining);
    element("total-of").textContent = `of ${number(total.queries)} answers left`;
    element("total-bar").max = total.queries;
    element("total-bar").value = total.answered;
    element("total-epsilon").textContent =
      `All answers: epsilon ${short(total.epsilon)} at delta ${budgets.budget.delta}. Given so ` +
      `far: ${short(total.spent_epsilon)}, which holds only if their number was fixed in advance.`;
  }
  element("students").replaceChildren(...budgets.students.map(studentRow));
  element("unit").textContent = budgets.unit;
  element("promise").textContent =
    `All questions of all students together never cost more than epsilon ` +
    `${short(budgets.budget.epsilon)} at delta ${budgets.budget.delta}. A student's epsilon is ` +
    "the cost of all answers that this student may get.";
  element("updated").textContent = new Date().toLocaleTimeString("en-GB");
  element("budgets").hidden = false;
  say(budgets.students.length === 0 ? "No student has a token yet." : "", false);
}

function signedOut(text) {
  clearTimeout(timer);
  sessionStorage.removeItem(STORED);
  element("budgets").hidden = true;
  element("sign-in").hidden = false;
  say(text, text !== "");
}

async function refresh() {
  clearTimeout(timer);
  const token = sessionStorage.getItem(STORED);
  if (token === null) return;
  try {
    const answer = await fetch("v1/budget", { headers: { Authorization: `Bearer ${token}` } });
    const body = await answer.json();
    if (sessionStorage.getItem(STORED) !== token) return;  // forgotten meanwhile
    if (answer.status === 401) {
      signedOut("This token is unknown, or was revoked.");
      return;
    }
    if (answer.ok) {
      element("sign-in").hidden = true;
      show(body);
    } else say(body.message, true);
  } catch {
    say("The teacher cannot be reached; trying again.", true);
  }
  timer = setTimeout(refresh, EVERY_MILLISECONDS);
}

element("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = element("token").value.trim();
  if (!/^[\x21-\x7e]+$/.test(token)) {
    say("This is not a token: a token has only letters, digits, - and _.", true);
    return;
  }
  sessionStorage.setItem(STORED, token);
  element("token").value = "";
  say("Asking the teacher.", false);
  refresh();
});

element("sign-out").addEventListener("click", () => {
  signedOut("");
  element("token").focus();
});

element("sign-in").hidden = sessionStorage.getItem(STORED) !== null;
refresh();
