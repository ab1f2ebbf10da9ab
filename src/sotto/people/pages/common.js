// What the three pages share: text goes in as text, and the token stays in memory.
import { Refusal } from "./client.js";

export const element = (id) => document.getElementById(id);

/** A number for people: whole ones with separators, others with four digits; a dash for null. */
export function number(value) {
  if (typeof value !== "number") return value ?? "—";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential().replace("+", "");
  return Number.isInteger(value) ? value.toLocaleString("en-GB") : String(+value.toPrecision(4));
}

/** "1 step", "2 steps". */
export function counted(count, thing) {
  return `${number(count)} ${thing}${count === 1 ? "" : "s"}`;
}

/** A time such as "37 seconds" or "2 hours". */
export function duration(seconds) {
  const [length, unit] = seconds < 120 ? [1, "second"] : seconds < 7200 ? [60, "minute"] :
    seconds < 172800 ? [3600, "hour"] : [86400, "day"];
  return counted(Math.round(seconds / length), unit);
}

/** Makes an element with text or children, and a class. */
export function made(tag, content = "", className = "") {
  const node = document.createElement(tag);
  if (Array.isArray(content)) node.append(...content);
  else node.textContent = content;
  if (className !== "") node.className = className;
  return node;
}

/** Makes a table row; the first cell is its heading. */
export function row(cells) {
  return made("tr", cells.map((content, i) => {
    const cell = made(i === 0 ? "th" : "td", content);
    if (i === 0) cell.scope = "row";
    return cell;
  }));
}

/** Tells the visitor; screen readers read it aloud. */
export function say(text, bad = false, where = "message") {
  const message = element(where);
  if (message.textContent !== text) message.textContent = text;
  message.classList.toggle("bad", bad);
}

/** Tells the visitor why something failed; what is no refusal is a mistake of the page. */
export function sayFailure(error, where = "message") {
  if (!(error instanceof Refusal)) console.error(error);
  const wait = error.retryAfter > 0 ? ` Try again in ${duration(error.retryAfter)}.` : "";
  say(asSentence(error.message) + wait, true, where);
}

function asSentence(text) {
  const sentence = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
}

/** What the campaign promises, in a few sentences. */
export function promise(privacy) {
  return `Epsilon ${number(privacy.epsilon)} at delta ${number(privacy.delta)}. Unit of privacy: ` +
    `${privacy.unit.replace(/[.]$/, "")}. ${asSentence(privacy.adversary)}`;
}

/** Makes an element with attributes and children. */
function shaped(tag, attributes, ...children) {
  const node = made(tag, children);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function signInForm(whose, verb) {
  return shaped("form", { id: "sign-in", class: "card" },
    shaped("label", { for: "token" }, whose),
    shaped("div", { class: "line" },
      shaped("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false",
        required: "", "aria-describedby": "token-note" }),
      shaped("button", { id: "enter", type: "submit" }, verb)),
    shaped("p", { id: "token-note", class: "soft" }, "The token stays in the memory of this page " +
      "and is forgotten when you leave it."));
}

/**
 * Makes the form for a token. Runs `open(token)` when one is typed, and shows `shown`
 * when that succeeds. The field is emptied, so that the token is in memory only. "Forget the token"
 * loads the page anew.
 * @param {string} whose label of the field
 * @param {string} verb what the button says
 * @param {HTMLElement} shown section of the page for which the token is needed
 * @param {function(string): Promise} open
 */
export function onSignIn(whose, verb, shown, open) {
  const form = signInForm(whose, verb);
  element("sign-in").replaceWith(form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const field = element("token");
    const token = field.value.trim();
    field.value = "";
    element("enter").disabled = true;
    say("Asking the campaign.");
    try {
      await open(token);
      form.hidden = true;
      shown.hidden = false;
      shown.focus();  // the keyboard goes on where the page goes on
    } catch (error) {
      sayFailure(error);
      field.focus();
    } finally {
      element("enter").disabled = false;
    }
  });
  element("forget").addEventListener("click", () => location.reload());
}
