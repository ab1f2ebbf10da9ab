#!/usr/bin/env python3
"""Checks the certificate of a described training without sotto: derives epsilon from the words.

    python check_described.py certificate.json

It needs check_certificate.py beside it, and what that file needs, and answers as that file does.
The facts are the words of whoever described the training. It takes from the certificate which
attack refutes the claim, and how the claimed number compares with other accountants.
"""

import math
import sys

import check_certificate as checker
from check_certificate import COMPUTED, bounds, gaussian, renyi, require, same

NAMES = """schema_version run_id status unit epsilon delta curve method claims description verdict
findings events versions"""
WORDS = """name source notes records batch_size sampling last_batch noise_multiplier clip_norm
noise_scaled_to runs records_per_person noise_secret noise_secure claimed"""
CLAIMED = {"epsilon", "delta", "adjacency", "accountant"}
COUNTS = ["records", "batch_size", "steps", "epochs", "runs", "records_per_person"]
ALLOWED = {
    "sampling": ("poisson", "shuffle", "fixed"),
    "last_batch": ("dropped", "kept", "none", "unknown"),
    "noise_scaled_to": ("sum", "mean"),
}
COMPARED = {"accountant-order-range", "epsilon-below-accounted", "epsilon-refuted"}  # not derived
MOST = 10**6  # steps; more of them, or extreme noise, take a distribution minutes
FINEST = 1e-10  # delta that such a distribution resolves well


def event_of(d, steps, epochs):
    """Returns what everything costs one record that contributes zero instead."""
    require(d["noise_secret"], "the seed of the noise is known")
    z, rate = d["noise_multiplier"], d["batch_size"] / d["records"]
    poisson, rest = d["sampling"] == "poisson", d["records"] % d["batch_size"]
    count = (steps if poisson else epochs) * d["runs"]
    if poisson and d["noise_scaled_to"] == "sum" and rate < 1:
        sampled = {"kind": "sampled-gaussian", "sampling_rate": rate, "count": count}
        return {**sampled, "noise_multiplier": float(z)}
    if d["noise_scaled_to"] == "mean":  # the smallest batch that there may be
        smallest = rest if rest and d["last_batch"] in ("kept", "unknown") else d["batch_size"]
        z *= (1 if poisson else smallest) / d["batch_size"]
    return {"kind": "gaussian", "noise_multiplier": z / math.sqrt(count)}


def strictly(d):
    """Ends the check unless every word has its type, and is one of the words that there are."""
    require(set(WORDS.split()) <= set(d), "the description lacks a word")
    unknown = set(d) - {*WORDS.split(), "steps", "epochs"}
    require(not unknown, f"the words {sorted(unknown)} of a description", "unverifiable")
    for name in COUNTS:
        require(type(d.get(name, 1)) is int and d.get(name, 1) >= 1, f"{name} is no count")
    for name, words in ALLOWED.items():
        require(d[name] in words, f"nothing is proved for the {name} {d[name]!r}")
    for name in ("noise_secret", "noise_secure"):
        require(type(d[name]) is bool, f"{name} is neither true nor false")
    claimed, z = d["claimed"], d["noise_multiplier"]
    require(set(claimed) - {"orders"} == CLAIMED, "it says another claim than it should")
    require(claimed["adjacency"] in ("add-remove", "zero-out", "replace"), "its adjacency")
    for one in (z, claimed["delta"], claimed["epsilon"]):
        require(one is None or type(one) in (int, float), f"{one!r} is no number")
    require(z is not None and 0 < z < math.inf, "the noise multiplier is not positive")


def sentences(d):
    """Returns the identifiers of the sentences that the certificate must say."""
    several, poisson = d["records_per_person"] > 1, d["sampling"] == "poisson"
    said = ["record", "asserted", "elsewhere", "clipped", "noise", "counted"]
    said += ["person", "one-record", "persons"] if several else []
    said += ["poisson" if poisson else "partitioned"]
    said += [] if d["noise_secure"] else ["generator"]
    return sorted(f"described.{name}" for name in said)


def length(d):
    """Returns the number of steps of one run, and of the epochs that began in it."""
    records, batch, last = d["records"], d["batch_size"], d["last_batch"]
    require(1 <= batch <= records and d["runs"] >= 1, "these batches or runs cannot be")
    require(("steps" in d) != ("epochs" in d), "it says neither or both of steps and epochs")
    ceiling, floor = -(-records // batch), records // batch
    if "epochs" in d:
        return d["epochs"] * (floor if last == "dropped" else ceiling), d["epochs"]
    return d["steps"], -(-d["steps"] // (ceiling if last == "kept" else floor))


def answers_on(event):
    """Returns a function from a number of records to the function `group` for it."""
    if event["kind"] == "gaussian":
        return lambda apart: group(event, apart, None, None)
    quick = renyi([event])
    fine = event["count"] <= MOST and 0.25 <= event["noise_multiplier"] <= 1e4
    one = bounds([event]) if fine else lambda delta: (quick(delta), 0.0)
    return lambda apart: group(event, apart, one, quick)


def group(event, apart, one, quick):
    """Returns the answer on (epsilon, delta), for neighbours that differ in this many records.

    They cost `apart` times each, at delta (1 + e^each + ... + e^((apart - 1) each)), if one of them
    costs (each, delta). The other way is to ignore sampling.
    """
    z, count = event["noise_multiplier"], event.get("count", 1)
    whole = gaussian([{"kind": "gaussian", "noise_multiplier": z / math.sqrt(count) / apart}])
    if event["kind"] == "gaussian":
        return lambda epsilon, delta: "true" if epsilon >= whole(delta)[0] else "false"

    def answer(epsilon, delta):
        each, small = epsilon / apart, 0.0
        if epsilon < 600:
            small = delta * (math.expm1(each) / math.expm1(epsilon) if each > 0 else 1 / apart)
        sure, least = one(max(small, FINEST))  # epsilon is larger at a smaller delta
        sure = sure if small >= FINEST else math.inf
        sure = min(sure, quick(small)) if small > 1e-300 else sure
        if each >= sure or epsilon >= whole(delta)[0]:
            return "true"
        return "false" if each < least * (1 - COMPUTED) else "unverifiable"

    return answer


def moves(d):
    """Whether the claim is about adding a record, which moves others between batches."""
    return d["claimed"]["adjacency"] == "add-remove" and d["sampling"] != "poisson"


def findings(d):
    """Returns the findings that need no computing, as the certificate should name them."""
    sampling, claimed, mean = d["sampling"], d["claimed"], d["noise_scaled_to"] == "mean"
    poisson, rest = sampling == "poisson", d["records"] % d["batch_size"]
    smaller = rest and d["last_batch"] in ("kept", "unknown")
    return {
        f"{'shuffled' if sampling == 'shuffle' else sampling}-accounted-as-poisson": not poisson,
        "last-batch-dropped": d["last_batch"] == "dropped" and rest and not poisson,
        "last-batch-kept-smaller": mean and not poisson and smaller,
        "noise-on-mean": mean and poisson,
        "several-runs": d["runs"] > 1,
        "insecure-noise": not d["noise_secure"],
        "adjacency-differs": claimed["adjacency"] == "replace" or moves(d),
        "unit-is-record": d["records_per_person"] > 1,
        "epsilon-not-stated": claimed["epsilon"] is None,
    }


def check(c):
    """Ends with a Verdict, unless every epsilon of the certificate follows from its words."""
    require(c["status"] == "described", "it is about a ledger; use check_certificate.py")
    extra = set(c) - {*NAMES.split(), "person"}
    require(not extra and set(NAMES.split()) <= set(c), f"it says or lacks {sorted(extra)}")
    d, delta, person = c["description"], c["delta"], c.get("person")
    strictly(d)
    known = {"described.person": (1, 2)}  # versions of a sentence; of all others, the first
    later = any(one["version"] not in known.get(one["claim"], (1,)) for one in c["claims"])
    require(not later, "a version of a sentence", "unverifiable")
    names = sorted(one["claim"] for one in c["claims"])
    require(names == sentences(d), "its sentences are other ones")
    claimed, replaced = d["claimed"], d["claimed"]["adjacency"] == "replace"
    unit = {"kind": "record", "adjacency": "replace-one" if replaced else "zero-out"}
    require(c["unit"] == unit and c["run_id"] == d["name"], "the unit or the name differs")
    require(0 < delta == claimed["delta"] < 1 / d["records"], "delta differs or is vacuous")
    require(c["epsilon"] < math.inf, "epsilon is infinite, so nothing is certified")
    event, apart, doubts = event_of(d, *length(d)), 2 if replaced else 1, []
    require(len(c["events"]) == 1 and same(c["events"][0], event), "the event is another one")
    points = [(c["epsilon"], delta, apart)] + [(*pair, apart) for pair in c["curve"]]
    several = d["records_per_person"] > 1
    require((person is not None) == several, "the cost to a person is missing, or is too much")
    if person:
        require(person["records"] == d["records_per_person"], "a person has other records")
        points.append((person["epsilon"], delta, apart * person["records"]))
    answers = answers_on(event)
    for epsilon, at, many in points:
        require(all(type(one) in (int, float) for one in (epsilon, at)), "a point is no number")
        found, words = answers(many)(epsilon, at), f"epsilon {epsilon:.6g} at delta {at:g}"
        require(found != "false", f"{words} does not follow from the words")
        doubts += [words] if found == "unverifiable" else []
    right = {name for name, there in findings(d).items() if there}
    require(set(c["findings"]) - COMPARED == right, "the findings are other ones")
    refuted, said = "epsilon-refuted" in c["findings"], claimed["epsilon"]
    follows = said is not None and said >= c["epsilon"]
    holds = "holds" if follows and not moves(d) else "undecided"
    require(c["verdict"] == ("false" if refuted else holds), f"the verdict {c['verdict']!r}")
    require(not (follows and refuted), "a claim cannot both follow and be refuted")
    require(not doubts, "; ".join(doubts), "unverifiable")


if __name__ == "__main__":
    sys.exit(checker.main(sys.argv[1], check) if len(sys.argv) == 2 else __doc__)
