// The client of a campaign of live people. It speaks the HTTP API under v1/ of its own origin.
//
//   const person = new Person(token);
//   const place = await person.takePlace();       // {place, release, version, seconds_left}
//   const policy = await person.policy();         // the version must be that of the place
//   await person.give(place.place, { observations, actions, rewards, terminated });
//
// Every method of a Person may be called again with the same arguments: the service gives the same
// place, and keeps a contribution once. The client itself repeats a request that got no response,
// or "later". A refusal is thrown as a Refusal. Nothing is stored in the browser.

const TRIES = 4;
const FIRST_PAUSE_MILLISECONDS = 500;
const LONGEST_PAUSE_MILLISECONDS = 10000;
const LONGEST_REQUEST_MILLISECONDS = 15000;
const LATER = new Set([429, 502, 503, 504]);

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Says why a request failed: a code for programs, and one sentence for people. */
export class Refusal extends Error {
  /**
   * @param {number} status HTTP status; 0 where the service could not be reached
   * @param {string} code kind of the refusal, such as "no-place", "took-part" or "unreachable"
   * @param {string} message one sentence
   * @param {?number} retryAfter seconds after which another try makes sense; null if unknown
   */
  constructor(status, code, message, retryAfter = null) {
    super(message);
    this.name = "Refusal";
    Object.assign(this, { status, code, retryAfter });
  }
}

/** A holder of a token. The token lives in this object only. */
class Caller {
  #token;

  constructor(token) {
    if (!/^[\x21-\x7e]+$/.test(token)) {
      throw new Refusal(0, "not-a-token",
        "This is not a token: a token has only letters, digits, - and _.");
    }
    this.#token = token;
  }

  /** The public facts of the campaign. */
  async campaign() {
    return (await this._ask("GET", "campaign")).json();
  }

  /** Sends a request, and the same one again while the service is away; gives its response. */
  async _ask(method, path, body, { headers = {}, tries = TRIES } = {}) {
    const options = {
      method,
      headers: { ...headers, Authorization: `Bearer ${this.#token}` },
      cache: "no-store",
      redirect: "error",
    };
    if (body !== undefined) {
      options.body = JSON.stringify(body);
      options.headers["Content-Type"] = "application/json";
    }
    for (let tried = 1; ; tried += 1) {
      const refusal = await attempt(`v1/${path}`, options);
      if (refusal instanceof Response) return refusal;
      const later = refusal.status === 0 || LATER.has(refusal.status);
      if (!later || tried === tries) throw refusal;
      const backoff = FIRST_PAUSE_MILLISECONDS * 2 ** (tried - 1);
      const asked = 1000 * (refusal.retryAfter ?? 0);
      await pause(Math.min(Math.max(backoff, asked), LONGEST_PAUSE_MILLISECONDS));
    }
  }
}

/** Sends a request once; gives a Response with the status 2xx or 304, or a Refusal. */
async function attempt(path, options) {
  let response, body;
  try {
    response = await fetch(path,
      { ...options, signal: AbortSignal.timeout(LONGEST_REQUEST_MILLISECONDS) });
    if (response.status === 304) return response;
    const bytes = await response.arrayBuffer();  // a response that breaks off is asked for again
    if (response.ok) return new Response(bytes, response);
    body = JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    if (response === undefined || response.ok) {
      return new Refusal(0, "unreachable",
        "The service cannot be reached; check the connection, and try again.");
    }
  }
  const seconds = Number(response.headers.get("Retry-After") ?? NaN);
  return new Refusal(response.status, body?.error ?? "no-reason",
    body?.message ?? `The service refused without a reason (status ${response.status}).`,
    Number.isFinite(seconds) ? seconds : null);
}

/** A person of a campaign. */
export class Person extends Caller {
  #policy = null;

  /** The current policy, {version, layers, ...}; unchanged ones are not sent again. */
  async policy() {
    const known = this.#policy;
    const headers = known === null ? {} : { "If-None-Match": known.tag };
    const response = await this._ask("GET", "policy", undefined, { headers });
    if (response.status === 304) return known.policy;
    const policy = await response.json();
    const tag = response.headers.get("ETag");
    this.#policy = tag === null ? null : { tag, policy };
    return policy;
  }

  /** Takes a place in the open release, or gives the open place that this person has already. */
  async takePlace() {
    return (await this._ask("POST", "places", {})).json();
  }

  /** Asks the service for the action of a step; for campaigns where the service acts. */
  async action(place, step, observation) {
    const answer = await this._ask("POST", "actions", { place, step, observation });
    return (await answer.json()).action;
  }

  /**
   * Gives the trajectory of a place; when this returns, the service has stored it for good.
   * @param {string} place
   * @param {{observations: number[][], actions: Array, rewards: number[], terminated: boolean}}
   *   trajectory T actions and rewards, and T + 1 observations
   */
  async give(place, { observations, actions, rewards, terminated }) {
    const body = { place, observations, actions, rewards, terminated };
    return (await this._ask("POST", "contributions", body)).json();
  }

  /** Withdraws from the campaign for good; gives the receipt and what it means. */
  async withdraw() {
    return (await this._ask("POST", "withdrawals", {})).json();
  }

  /** What the campaign knows about this person. */
  async me() {
    return (await this._ask("GET", "me")).json();
  }
}

/** The operator of a campaign. */
export class Operator extends Caller {
  /** The state of the campaign. */
  async state() {
    return (await this._ask("GET", "operator")).json();
  }

  /** Enrols people and gives their tokens. It is tried once: a second try would enrol others. */
  async enrol(count) {
    return (await this._ask("POST", "people", { count }, { tries: 1 })).json();
  }
}
