// The page of a person: what is collected, the cost, the places, and withdrawing.
import { Person } from "./client.js";
import { element, made, number, onSignIn, promise, row, say, sayFailure } from "./common.js";

const MEANINGS = {
  taken: "You have this place, and gave nothing yet.",
  given: "Your contribution is stored, encrypted. You can take it back until its " +
    "release begins: withdraw.",
  expired: "The time of this place ran out. Nothing of you is stored for it.",
  withdrawn: "You withdrew in time. Nothing of you is stored for it.",
  released: "A policy was made with your contribution, and the contribution was deleted.",
  lost: "This release failed. Your contribution was deleted, and counts in your cost. No " +
    "policy has it, unless the campaign’s database was restored from an older copy.",
  refused: "Your contribution was deleted and not used: your budget is spent, or you were " +
    "charged before.",
};
let person;

function show(me, campaign) {
  element("who").textContent = `You are person ${number(me.person)} of the campaign ` +
    `“${campaign.name}”, which has made ${number(campaign.version)} of ` +
    `${number(campaign.horizon)} releases.`;
  element("collected").textContent = me.collected;
  element("promise").textContent = promise(campaign.privacy);
  element("cost").textContent = me.cost === null ? "No cost is stated for you yet." :
    `Your cost so far: epsilon ${number(me.cost.epsilon)} at delta ${number(me.cost.delta)}.`;
  element("places").replaceChildren(...me.places.map((place) => row([
    number(place.release),
    [made("span", place.state, `state ${place.state}`)],
    MEANINGS[place.state] ?? "",
  ])));
  element("places-table").hidden = me.places.length === 0;
  element("no-places").hidden = me.places.length > 0;
  element("withdraw").textContent = me.withdrew ? "Show my receipt" : "Withdraw";
  element("withdraw").classList.toggle("danger", !me.withdrew);
  element("withdrawing").hidden = me.withdrew;
  return me.withdrew;
}

async function refresh() {
  const [me, campaign] = await Promise.all([person.me(), person.campaign()]);
  return show(me, campaign);
}

async function withdraw() {
  element("sure").close();
  element("withdraw").disabled = true;
  say("Withdrawing.");
  try {
    const { receipt, meaning } = await person.withdraw();
    element("meaning").textContent = meaning;
    element("receipt-text").textContent = JSON.stringify(receipt, null, 2);
    element("receipt").hidden = false;
    say("You have withdrawn. Your receipt is below.");
    element("receipt-text").focus();
    await refresh();
  } catch (error) {
    sayFailure(error);
  } finally {
    element("withdraw").disabled = false;
  }
}

onSignIn("Your token", "Show", element("facts"), async (token) => {
  person = new Person(token);
  say(await refresh() ? "You have withdrawn from this campaign." : "");
});
element("withdraw").addEventListener("click", () => {
  if (element("withdrawing").hidden) withdraw();
  else element("sure").showModal();
});
element("stay").addEventListener("click", () => element("sure").close());
element("leave").addEventListener("click", withdraw);
