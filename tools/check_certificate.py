#!/usr/bin/env python3
"""Checks a privacy certificate of sotto without sotto: derives epsilon again from its claims.

    python check_certificate.py certificate.json

It needs Python 3.11 and `pip install dp-accounting==0.6.0`. It prints one line:

    true: ...           epsilon is at least what the claims give        (exit code 0)
    false: ...          it is less, or claims contradict each other     (exit code 1)
    unverifiable: ...   dp_accounting cannot express this mechanism     (exit code 2)

It takes from the certificate what no stranger can see: who took part, that contributions were
bounded and noise was drawn as stated, and what the noise sampler costs (sampler_delta).
"""

import json
import math
import sys

import dp_accounting
from dp_accounting.dp_event import RepeatAndSelectDpEvent, SelfComposedDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld

COMPUTED = 1e-6  # relative difference that another machine's arithmetic may make
PRINTED = 1e-5  # relative error of a number that a sentence says with six digits
RESOLUTION = 2e-3  # relative error of a privacy loss distribution on the grid chosen here
ORDERS = [1 + 2 ** (x / 20) for x in range(-130, 270)]  # of Renyi divergences
FIELDS = """name unit participation parts dimensions clipping divisor correlation horizon population
entropy sampler_delta sum_rounding noise_rounding noise_law protects does_not_protect assumptions
gaps prefixes choice selection shares mechanism distance schedule queries queries_per_student
observation_size one_student accounting"""
KINDS = "gaussian sampled-gaussian repeat-and-select stable-prefixes approximate-dp"
NOTHING = {"kind": "no-guarantee"}
NAMES = """schema_version run_id created status unit unit_sentence epsilon delta budget curve method
persons protects does_not_protect assumptions claims gaps streams answers worst_person versions
head_hash"""  # of a certificate's fields
WORDS = {  # that this file understands, by the name of their field and of what the field is in
    "unit adjacency": "zero-out replace-one within-radius",
    "participation kind": "once returning poisson",
    "correlation kind": "independent prefix-sum binary-tree",
    "statement clipping": "separate joint",
    "statement entropy": "operating-system fixed-seed",
    "statement noise_law": "on-grid scaled-float64",
    "selection tries": "geometric poisson",
    "distance kind": "observation policy any-two-teachers training-shards",
    "schedule kind": "constant vanishing",
}
UNITS = "trajectory feedback segment expert transition"  # of contributions to a sum
FLAGS = "exclusive revoked one_student"
TEACHERS = {"policy": "policy", "any-two-teachers": "teacher", "training-shards": "trajectory"}


class Verdict(Exception):
    """The end of a check: "false" or "unverifiable", and the reason."""


def require(holds, reason, verdict="false"):
    """Ends the check with this verdict, unless something holds."""
    if not holds:
        raise Verdict(verdict, reason)


def read(path):
    """Returns the certificate in a file, read strictly; "Infinity" becomes a number."""

    def once(pairs):
        found = {name: math.inf if value == "Infinity" else value for name, value in pairs}
        require(len(found) == len(pairs), "the file says a name twice")
        return found

    def finite(text):
        require(math.isfinite(float(text)), f"the file says {text}")
        return float(text)

    try:
        with open(path, encoding="utf-8", newline="") as file:
            c = json.load(file, object_pairs_hook=once, parse_float=finite, parse_constant=finite)
    except OSError as error:
        raise Verdict("unverifiable", f"the file cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise Verdict("false", f"the file is no JSON ({error})") from error
    require(repr(c.get("schema_version")) in ("1", "2"), "its schema version", "unverifiable")
    return c


def understand(value, name="", above=""):
    """Ends the check at a word that this file does not know, and at a number below zero."""
    if isinstance(value, dict):
        for key, one in value.items():
            understand(one, key, name)
    elif isinstance(value, list):
        for one in value:
            understand(one, name, above)
    elif isinstance(value, bool):
        require(name in FLAGS.split(), f"{name} is {value}")
    elif isinstance(value, (int, float)):
        require(value >= 0, f"{name} is {value}")
    elif known := WORDS.get(f"{above} {name}"):
        require(value in known.split(), f"the {name} {value!r}", "unverifiable")


def require_bound(s, sentences):
    """Requires the sentence on the sensitivity of a function, whose values no code clips."""
    every = {"kind": "returning", "max_participations": s["horizon"], "min_separation": 1}
    require(s["participation"] == every, f"not all releases of {s['name']!r} have its input")
    factor = 2 if s["unit"]["adjacency"] == "replace-one" else 1
    bound, name = factor * s["parts"]["values"]["clip_norm"], "functions.sensitivity"
    said = [one["numbers"] for one in sentences if one.get("claim") == name]
    said = [float(one["bound"]) for one in said if one["name"] == repr(s["name"])]
    found = any(math.isclose(one, bound, rel_tol=PRINTED) for one in said)
    require(found, f"no sentence says why the values of {s['name']!r} differ by {bound:.6g}")


def event_of(s, sentences=None):
    """Returns the event that a stream's statement costs one person, to its horizon."""
    unit, rule, parts, name = s["unit"], s["participation"], s["parts"], s["name"]
    everybody = rule["kind"] == "returning" and set(parts) == {"values"}
    values = unit["adjacency"] == "within-radius" or (everybody and unit["kind"] == "transition")
    coarse = values and s.get("noise_law", "scaled-float64") == "scaled-float64"
    if s["gaps"] or s["entropy"] != "operating-system" or coarse:
        return NOTHING
    if values and parts and sentences is not None:
        require_bound(s, sentences)
    kinds = bool(parts) + bool(s.get("prefixes")) + bool(s.get("choice"))
    require(kinds == 1, f"{name!r} states {kinds} kinds of releases, not one")
    if mechanism := s.get("prefixes"):
        ratio, noise = mechanism["rule"]["ratio"], mechanism["noise"]
        epsilon = noise["threshold_rate"] + noise["query_rate"] * (1 if ratio else 2)
        event = {"count": s["horizon"], "epsilon": epsilon, "failure": mechanism["failure"]}
        return {"kind": "stable-prefixes", "ratio": ratio, **event}
    within, kind = unit["adjacency"] == "within-radius", unit["kind"]
    said = any(one.get("claim") == "functions.sensitivity" for one in sentences or ())
    function = (values and parts) or said or s.get("choice")
    known = ["reward-function" if within else "transition"] if function else UNITS.split()
    require(kind in known, f"no release as that of {name!r} protects such a unit")
    if choice := s.get("choice"):  # rounding moves values by up to 3 steps of the grid
        rate, made = choice["rate"], choice["sensitivity"] > 0 and choice["candidates"] > 1
        require(made and 0 < rate <= 64 and rate * 2**30 % 1 == 0, f"{name!r} cannot be chosen so")
        epsilon = rate * (1 + 3 * 2.0**-20)
        return {"kind": "approximate-dp", "epsilon": epsilon, "delta": 0.0, "count": s["horizon"]}
    noises = [part["noise_multiplier"] for part in parts.values()]
    require(noises and min(noises) > 0, f"{name!r} states no noise")
    joint = s["clipping"] == "joint"
    require(not joint or len(set(noises)) == 1, f"{name!r} is clipped jointly, with several noises")
    z = noises[0] if joint else sum(x**-2 for x in noises) ** -0.5
    z /= 2 if unit["adjacency"] == "replace-one" else 1
    for key, part in parts.items() if s.get("shares") else ():  # noise that devices make together
        share, n = s["shares"]["parts"][key], s["shares"]["promised"] - s["shares"]["colluding"]
        made = math.sqrt(share["variance"] * n) * share["grid"] / part["clip_norm"]
        require(made >= part["noise_multiplier"], f"the shares of {key!r} make less noise")
    event = {"kind": "gaussian", "noise_multiplier": z}
    if rule["kind"] == "poisson":
        proved = unit["adjacency"] == "zero-out" and s["correlation"]["kind"] == "independent"
        require(proved, f"{name!r} is sampled under an adjacency or with noise that has no proof")
        sampled = {"kind": "sampled-gaussian", "sampling_rate": rule["sampling_rate"]}
        event = event | sampled | {"count": s["horizon"]}
    if chosen := s.get("selection"):
        law = {"tries": chosen["tries"], "mean": chosen["mean"]}
        return {"kind": "repeat-and-select", "run": event, "count": 1, **law}
    return event


def answer_event(s, count):
    """Returns the event of a teacher's answers; one without a way to derive it has no noise."""
    d, mechanism = s["distance"], s["mechanism"]
    if s["gaps"] or s["entropy"] != "operating-system":
        return NOTHING
    if mechanism["kind"] != "gaussian-policy":
        return {"kind": f"{mechanism['kind']} answers"}
    any_two = math.sqrt(2) / (d["teachers"] if d["kind"] == "training-shards" else 1)
    near = d.get("lipschitz", 0) * d.get("radius", 0) if d["kind"] == "observation" else d.get("l2")
    far = near if d["kind"] in ("observation", "policy") else any_two
    m, stddev = mechanism["actions"], mechanism["noise_stddev"]
    far = min(far + 2 * d.get("rounding", 5e-10), math.sqrt(2)) * max(0, 1 - m * mechanism["floor"])
    grid = 2.0 ** (math.ceil(math.log2(max(1.0, stddev))) - 40)
    z = stddev / (far + grid * math.sqrt(m))
    return {"kind": "gaussian", "noise_multiplier": z / math.sqrt(count)} if z >= 0.2 else NOTHING


def same(stated, derived):
    """Whether a stated event is the derived one; noise multipliers are computed numbers."""
    if isinstance(derived, dict) and isinstance(stated, dict):
        return all(name in stated and same(stated[name], derived[name]) for name in derived)
    if isinstance(derived, float) and type(stated) in (int, float):
        return math.isclose(stated, derived, rel_tol=COMPUTED)
    return stated == derived


def bounds(events, lost=0.0):
    """Returns a function from delta to two numbers, for events that one person pays for together.

    At the first of them epsilon surely holds. Below the second one the claims do not give it.
    `lost` is the delta that noise samplers cost.
    """
    kinds = {event["kind"] for event in events}
    if "no-guarantee" in kinds:
        return lambda _: (math.inf, math.inf)
    if not kinds <= {*KINDS.split()} or any(event.get("ratio") for event in events):
        return lambda _: (math.inf, 0.0)
    lost += sum(event["count"] * event.get("failure", 0) for event in events if "count" in event)
    if kinds <= {"gaussian"}:
        found = gaussian(events)
    elif "repeat-and-select" in kinds:  # with a constant score, the best try is any one try
        above, below = renyi(events), bounds([{**e.get("run", e), "failure": 0} for e in events])
        found = lambda delta: (above(delta), below(delta)[1])  # noqa: E731
    else:
        found = distribution(events)
    return lambda delta: found(delta - lost) if delta > lost else (math.inf, math.inf)


def gaussian(events):
    """Returns exact bounds of Gaussian releases, sampled ones as if everybody were drawn."""
    shift = sum(event.get("count", 1) * event["noise_multiplier"] ** -2 for event in events)
    exact, z = dp_accounting.get_epsilon_gaussian, shift**-0.5 if shift else math.inf
    return lambda delta: (exact(z, delta) * (1 - COMPUTED) - 1e-9,) * 2


def renyi(events):
    """Returns epsilon by Renyi composition, as a function of delta."""

    def translated(event):
        count, rate = event.get("count", 1), event.get("sampling_rate")
        if event["kind"] == "repeat-and-select":
            run, shape = SelfComposedDpEvent(*translated(event["run"])), event["tries"]
            shape = 1 if shape == "geometric" else math.inf
            return RepeatAndSelectDpEvent(run, event["mean"], shape), count
        # A pure release has Renyi divergences below epsilon^2 order / 2, as Gaussian noise has.
        noise = dp_accounting.GaussianDpEvent(event.get("noise_multiplier") or 1 / event["epsilon"])
        return dp_accounting.PoissonSampledDpEvent(rate, noise) if rate else noise, count

    sampled = any("sampling_rate" in event.get("run", event) for event in events)
    accountant = dp_accounting.rdp.RdpAccountant([*range(2, 65), 128, 256] if sampled else ORDERS)
    for event in events:
        accountant.compose(*translated(event))
    return lambda delta: float(accountant.get_epsilon(delta))


def distribution(events):
    """Returns bounds from the privacy loss distribution of sampled and of pure releases."""
    pure = sum(event.get("count", 1) for event in events if "epsilon" in event)
    drawn = (lambda _: (math.inf, 0.0)) if pure else gaussian(events)
    width = 1e-2  # the least standard deviation of a loss; pure epsilons, rounded up, need less
    for event in events:
        z, rate = event.get("noise_multiplier", 1.0), event.get("sampling_rate", 1.0)
        deviation = rate * math.sqrt(math.expm1(min(z**-2, 50.0)))
        width = min(width, event["epsilon"] / 100 if "epsilon" in event else deviation)
    reach = renyi(events)(1e-15)
    interval = max(min(1e-4, width / 20), reach / 1e6)
    grid, total = {"value_discretization_interval": interval}, pld.identity(interval)
    for event in events if reach < 500 else ():
        if "epsilon" in event:
            one = pld.from_randomized_response(2 / (1 + math.exp(event["epsilon"])), 2, **grid)
        else:
            z, rate = event["noise_multiplier"], event.get("sampling_rate", 1.0)
            one = pld.from_gaussian_mechanism(z, sampling_prob=rate, **grid)
        total = total.compose(one.self_compose(event.get("count", 1)))

    def at(delta):
        found = total.get_epsilon_for_delta(delta) if reach < 500 else math.inf
        enough = min(found * (1 - RESOLUTION), drawn(delta)[0]) - 1e-6
        sure = found < math.inf and interval <= width / 10  # each pure loss is rounded up
        return enough, enough - pure * interval if sure else 0.0

    return at


def of_streams(c):
    """Returns claims about what people pay: points, events, samplers' delta, whether it is sure."""
    streams, statements = c["streams"], [one["statement"] for one in c["streams"]]
    events = [event_of(s, c.get("claims")) for s in statements]
    for one, s, event in zip(streams, statements, events, strict=True):
        require(s["unit"] == c["unit"], f"{s['name']!r} has another unit")
        require(one["releases"] <= s["horizon"], f"{s['name']!r} made too many releases")
        whole = s["participation"].get("population") if one["releases"] else 0
        require(whole in (None, one["persons"]), f"not all people pay for {s['name']!r}")
        stated = same(one["event"], event if one["releases"] else None)
        require(stated, f"the cost of {s['name']!r} is not what its statement gives")
    charged = {i for i, one in enumerate(streams) if one["releases"]}
    rules = enumerate(s["participation"] for s in statements)
    shared = {i for i, one in rules if one["kind"] != "once" and not one.get("exclusive")}
    groups, bound, worst = {(i,): True for i in charged}, [], c["worst_person"]
    points, sentences = [(c["epsilon"], c["delta"]), *c["curve"]], c.get("claims", ())
    said = {one.get("claim") for one in sentences}
    rule = said & {"ledger.filtered", "ledger.planned"}
    ruled = rule or said & {"people.settings", "people.candidates"} or c["schema_version"] == 1
    open_end = shared & charged and not ruled and c["epsilon"] < math.inf
    require(not open_end, "no sentence says why streams with the same people can be added up")
    people = [one["persons"] for one in streams]
    alone = sum(people[i] for i in range(len(people)) if i not in shared)
    most = [people[i] for i in shared] or [0]
    fits = alone + max(most) <= c["persons"] <= alone + sum(most) and c["persons"] * c["delta"] < 1
    require(fits, f"persons is {c['persons']}, which does not fit its streams or delta")
    if shared & charged and "ledger.filtered" in rule:  # the budget, however many streams follow
        reserve = 1e-9 * c["delta"]
        z = float(dp_accounting.get_sigma_gaussian(c["budget"]["epsilon"], c["delta"] - reserve))
        bound = [(points, [{"kind": "gaussian", "noise_multiplier": z}], reserve, True)]
        require(all(events[i]["kind"] == "gaussian" for i in shared), "a filter adds up Gaussians")
        spent = {i: (z / events[i]["noise_multiplier"]) ** 2 for i in shared}
        mean = sum(people[i] * part for i, part in spent.items()) <= 1.001 * (c["persons"] - alone)
        lost = max(statements[i]["sampler_delta"] for i in shared)
        fits = max(spent.values()) <= 1.001 and mean and lost <= reserve
        require(fits, "streams of shared people cost more than the budget that bounds them")
    elif shared & charged:  # without a plan, only the ledger knows who took part in what
        groups.setdefault(tuple(sorted(shared if rule else shared & charged)), bool(rule))
    require(bool(worst["events"]) == bool(charged), "worst_person says another number of costs")
    if not (bound and same(worst["events"][0], bound[0][1][0])):
        left, named = shared | charged, []
        for name, event in zip(worst["streams"], worst["events"], strict=True):
            found = [i for i in left if statements[i]["name"] == name and same(event, events[i])]
            require(found, f"worst_person: {name!r} does not cost {event}")
            named, left = [*named, found[0]], left - {found[0]}
        groups.setdefault(tuple(sorted(named)), True)
    lost = [s["sampler_delta"] for s in statements]
    found = [([events[i] for i in g], sum(lost[i] for i in g), sure) for g, sure in groups.items()]
    for one in (one for one in sentences if one.get("claim") == "ledger.shared-budget"):
        limit = [tuple(float(one["numbers"][name]) for name in ("epsilon", "delta"))]
        single = [i for i in charged if events[i]["kind"] == "gaussian"]
        bound += [(limit, [events[i]], lost[i], True) for i in single]
    return [(points, *one) for one in found] + bound


def of_answers(c):
    """Returns the claims about a teacher's answers, as `of_streams` does."""
    a, s, at = c["answers"], c["answers"]["statement"], c["delta"]
    rows, kind = [([(a["planned_epsilon"], at)], s["queries"])], s["distance"]["kind"]
    m, teachers, students = s["mechanism"], s["distance"].get("teachers", 1), a["students"]
    require(m["actions"] >= 2 and 0 <= m["floor"] * m["actions"] <= 1, "no row has this floor")
    require(s["distance"].get("rounding", 5e-10) > 0, "no network has this rounding")
    require(teachers >= 1 and at * teachers < 1, "delta is vacuous for so many teachers")
    least = 1e-23 * max(1, s["queries"] / 1e6) if m["kind"] == "gaussian-policy" else 0
    require(at >= least or c["budget"]["epsilon"] == math.inf, "delta is finer than the sampler")
    require(len(students) <= 1 or not s.get("one_student"), "one student is several")
    unit = {"kind": TEACHERS.get(kind, kind), "adjacency": "replace-one"}
    require(c["unit"] == unit, "the unit is not that of the distance")
    for one in ({**a, "epsilon": c["epsilon"], "queries": s["queries"]}, *students):
        ahead = c["schema_version"] == 2 and one["answered"] > 0  # version 1 stated the cost so far
        less = not ahead or one["epsilon"] >= one.get("spent_epsilon", 0) * (1 - COMPUTED)
        require(less, "answers cost more than the epsilon of all that may be given")
        rows.append(([(one["epsilon"], at)], one["queries" if ahead else "answered"]))
        rows.append(([(one.get("spent_epsilon", math.inf), at)], one["answered"]))
    rows.append((c["curve"], rows[1][1]))
    found = [(points, [answer_event(s, n)] if n else [], 0.0, True) for points, n in rows]
    for stated, event in zip(c["worst_person"]["events"], found[1][1], strict=False):
        require("answers" in event["kind"] or same(stated, event), "worst_person costs another sum")
    return found


def check(c):
    """Ends with a Verdict, unless every epsilon of the certificate follows from its claims."""
    require(c["status"] != "described", "no ledger; use check_described.py", "unverifiable")
    delta, doubts, teacher = c["delta"], [], c.get("answers")
    require(0 < delta < 1 and delta == c["budget"]["delta"], "delta is not that of the budget")
    require(set(c) <= {*NAMES.split()}, f"the field {min({*c} - {*NAMES.split()}, default='')!r}")
    understand({name: c[name] for name in c if name != "versions"})
    most = c["budget"]["epsilon"] * (1 + COMPUTED)
    require(c["epsilon"] <= most or c["epsilon"] == math.inf, "epsilon exceeds the budget")
    require(not (teacher and c["streams"]), "it is about a teacher and about streams")
    charged = [*c["streams"], *([teacher] if teacher else [])]
    for name in {name for one in charged for name in one["statement"]}:
        require(name in FIELDS.split(), f"the field {name!r} of a statement", "unverifiable")
    used = [one["statement"] for one in charged if one.get("releases", one.get("answered"))]
    none = not used or any(s["entropy"] != "operating-system" for s in used)
    proved = "proved" if c["epsilon"] < math.inf else "none"
    status = "none" if none else "paper-claim" if any(s["gaps"] for s in used) else proved
    require(c["status"] == status, f"the status is {c['status']}, and the claims give {status}")
    for points, events, lost, sure in of_answers(c) if teacher else of_streams(c):
        found, kinds = bounds(events, lost), ", ".join(sorted({one["kind"] for one in events}))
        for claimed, at in points:
            enough, least = found(at)
            claimed = math.inf if claimed == "Infinity" else claimed
            less = f"epsilon {claimed:.6g} is claimed at delta {at:g}, and claims give {least:.6g}"
            require(claimed >= least or not sure, less)
            doubts += [] if claimed >= enough else [kinds if sure else "who took part in what"]
    require(not doubts, "; ".join(dict.fromkeys(doubts)), "unverifiable")


def main(path, check=check):
    """Prints the verdict on a file, and returns the exit code."""
    try:
        check(c := read(path))
        verdict, reason = "true", f"epsilon {c['epsilon']:.6g} at delta {c['delta']:g} follows"
        if any("sentence" in one for one in c.get("claims", ())):
            reason += "; sentences that the algorithm's author wrote are not checked"
    except Verdict as end:
        verdict, reason = end.args
    except (LookupError, TypeError, AttributeError) as error:
        verdict, reason = "false", f"the file is no certificate ({type(error).__name__}: {error})"
    except (ValueError, ArithmeticError) as error:
        verdict, reason = "unverifiable", f"dp_accounting gives no answer ({error})"
    print(f"{verdict}: {reason}")
    return ["true", "false", "unverifiable"].index(verdict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else __doc__)
