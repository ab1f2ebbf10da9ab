// The page of the game: the policy plays, and the trajectory is given to the campaign.
import { Person, Refusal } from "./client.js";
import { counted, element, number, onSignIn, promise, say, sayFailure } from "./common.js";
import { Policy } from "./policy.js";
import { worldOf } from "./worlds.js";

let person, campaign, world;
let unsent = null;  // {place, trajectory} which the service has not acknowledged
let episode;

const stillPicture = matchMedia("(prefers-reduced-motion: reduce)");
const nextStep = () => new Promise((resolve) => setTimeout(resolve, 1000 * world.stepSeconds));

/** Says why this campaign cannot be played here; "" if it can. */
function unplayable({ gives, state }) {
  if (world === undefined) {
    return "The spaces of this campaign are neither those of CartPole nor those of Dosing. This " +
      "page plays nothing else; use the campaign's own client.";
  }
  if (gives !== "trajectory") {
    return "People of this campaign give updates, which their devices compute. This page gives " +
      "trajectories only; use the campaign's own client.";
  }
  return state === "finished" ? "This campaign is finished: it takes no further trajectories." : "";
}

function describe() {
  const actor = campaign.acts === "device" ?
    "The policy chooses every action in your browser" :
    "The service chooses every action: each step sends what happens";
  element("about").textContent = `${world?.task ?? ""} ${actor}, for at most ` +
    `${counted(campaign.steps, "step")}. Then this page sends the trajectory: ` +
    `${world?.states ?? "states"}, the actions and the rewards. You may take part in ` +
    `${counted(campaign.participations, "release")}.`;
  element("promise").textContent = promise(campaign.privacy);
}

/** Gives the function that chooses the action of a step. */
async function actor(place) {
  if (campaign.acts === "server") {
    return (step, observation) => person.action(place.place, step, observation);
  }
  const policy = new Policy(await person.policy());
  if (policy.version !== place.version) {
    throw new Refusal(0, "new-version",
      "A new policy came out in this moment; press Play again.");
  }
  return (_step, observation) => policy.draw(observation);
}

/** Lives one trajectory and draws it. */
async function live(place) {
  const choose = await actor(place);
  element("version").textContent = `Policy version ${number(place.version)}`;
  say("The policy plays.");
  episode = world.start();
  const trajectory = { observations: [episode.observation], actions: [], rewards: [] };
  while (!episode.over && episode.steps < campaign.steps) {
    const action = await choose(episode.steps, episode.observation);
    trajectory.rewards.push(episode.step(action));
    trajectory.actions.push(action);
    trajectory.observations.push(episode.observation);
    if (document.hidden || stillPicture.matches) continue;  // a hidden page's clock runs slowly
    show();
    await nextStep();
  }
  show();
  return { ...trajectory, terminated: episode.terminated };
}

function show() {
  if (episode === undefined) return;
  world.draw(element("picture"), episode);
  element("steps").textContent = counted(episode.steps, "step");
}

/** Sends the trajectory; it stays here if the service cannot be reached. */
async function send() {
  const { place, trajectory } = unsent;
  say("Sending the trajectory.");
  try {
    await person.give(place, trajectory);
  } catch (error) {
    if (error.status !== 0 && error.status < 500 && error.status !== 429) unsent = null;
    throw error;
  }
  unsent = null;
  const steps = trajectory.actions.length;
  const ended = trajectory.terminated ? "yes" : "no";
  const size = trajectory.observations[0].length;
  element("sent-what").textContent = `The page sent ${counted(steps + 1, "observation")} of ` +
    `${size} numbers, ${counted(steps, "action")}, ${counted(steps, "reward")}, and whether ` +
    `${world.ended} (${ended}). Your token and the place came with it, nothing else.`;
  element("sent-text").textContent = JSON.stringify(trajectory);
  element("sent").hidden = false;
  say(`Thank you. Your trajectory of ${counted(steps, "step")} is stored. Until its ` +
    "release begins you can take it back: withdraw on the page “My data”.");
}

async function play() {
  const button = element("play");
  button.disabled = true;
  try {
    if (unsent === null) {
      element("sent").hidden = true;
      say("Taking a place.");
      const place = await person.takePlace();
      unsent = { place: place.place, trajectory: await live(place) };
    }
    await send();
  } catch (error) {
    sayFailure(error);
  }
  button.textContent = unsent === null ? "Play again" : "Send again";
  button.disabled = false;
  button.focus();
}

onSignIn("Your token", "Enter", element("game"), async (token) => {
  person = new Person(token);
  campaign = await person.campaign();
  world = worldOf(campaign.spaces);
  describe();
  const why = unplayable(campaign);
  element("play").hidden = why !== "";
  element("picture").hidden = why !== "";
  if (why === "") {
    element("picture").setAttribute("aria-label", world.picture);
    episode = world.start();
  }
  say(why, why !== "");
});
element("play").addEventListener("click", play);
new ResizeObserver(show).observe(element("picture"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
