"""Training on devices, with Flower's messages but without its processes."""

import dataclasses
import functools
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from local_grid import LocalGrid, hosts, persons
from scipy.stats import binom

import sotto
from sotto.errors import RunError
from sotto.federated import client, messages, runs
from sotto.federated.client import client_app, simulated
from sotto.federated.errors import ProtocolError
from sotto.federated.network import Network
from sotto.federated.plan import Plan
from sotto.federated.round import Round
from sotto.federated.simulation import Unreliable
from sotto.federated.training import on_devices
from sotto.privacy.release.noise_shares import Promise
from sotto.runs import registry, start

SLOTS, PROMISED = 6, 4
PROMISE = Promise(PROMISED, 0, 24)


@dataclass(frozen=True)
class MeanConfig:
    num_updates: int = 3
    seed: int = 0
    target_epsilon: float = 3.0
    delta: float = 1e-3


class Mean(sotto.PrivateAlgorithm[MeanConfig]):
    """Sums of vectors that each person draws from its key: an algorithm of a user."""

    name, summary, config_type = "test-mean", "a mean", MeanConfig

    def release(self, config):
        def local(_state, _unit, _key):
            return {"vector": jnp.full(3, 0.1)}, ()

        def server(state, released):
            return state + 1, {"first": released["vector"][0], "sum": state}

        z = sotto.calibrate(target_epsilon=config.target_epsilon, delta=config.delta / 2)
        return sotto.Release(
            name="mean of vectors",
            local=local,
            server=server,
            unit=sotto.Unit(kind="trajectory", adjacency="zero-out"),
            parts={"vector": sotto.Part(clip_norm=0.2, noise_multiplier=z)},
            slots=SLOTS,
            divisor=float(SLOTS),
            horizon=config.num_updates,
            population="simulated",
        )

    def initial_state(self, _config, _key):
        return jnp.zeros(())

    def policies(self, states):
        return {"last": states}

    def mean_return(self, _config, _states, updates, _episodes):
        return np.array([float(updates)])


class Given(Mean):
    """The same about people whose devices give the vectors."""

    name = "test-given"

    def on_devices(self, config, horizon):
        def local(_state, unit, _key):
            return {"vector": unit}, ()

        release = dataclasses.replace(
            self.release(config), local=local, horizon=horizon, population="real"
        )
        return release, jnp.zeros(3)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The algorithm is installed under its name, as a package would install it."""
    entries = {
        **registry.entries(),
        Mean.name: registry.Entry(f"{__name__}:Mean", "a mean"),
        Given.name: registry.Entry(f"{__name__}:Given", "a mean of given vectors"),
    }
    monkeypatch.setattr(registry, "entries", lambda: entries)
    Plan.from_json.cache_clear()


def begun(path: Path, **settings) -> tuple:
    config = MeanConfig(**settings)
    return runs.begin(Mean(), config, PROMISE, path / "run", "test"), config


def trained(experiment, grid, promise=PROMISE) -> list:
    reports: list = []
    runs.train(experiment, promise, Network(grid, 0.1), reports.append)
    return reports


def charged(path: Path) -> int:
    run = runs.go_on(path / "run")[0].runs[0]
    return sum(stream.releases for stream in run.open_ledger().streams)


def test_a_run_on_devices_is_a_run(tmp_path):
    experiment, _ = begun(tmp_path)
    grid = LocalGrid(client_app(), persons(30))
    reports = trained(experiment, grid)
    assert [one.updates for one in reports] == [1, 2, 3]
    found = sotto.verify(tmp_path / "run")
    assert {one.status for one in found.values()} == {"verified"}
    certificate = experiment.runs[0].certificate.read_text()
    assert '"proved"' in certificate
    assert '"shares"' in certificate
    ledger = experiment.runs[0].open_ledger()
    assert ledger.persons == 3 * SLOTS
    assert ledger.spent().epsilon <= 3.0
    with pytest.raises(ValueError, match="all of its 3 updates"):
        trained(runs.go_on(tmp_path / "run")[0], grid)


def test_released_sums_are_those_of_people(tmp_path):
    """With much noise less the sum is 0.6 / 6 in each number: all six are in it, once."""
    experiment, _ = begun(tmp_path, target_epsilon=60.0, delta=0.05)
    reports = trained(experiment, LocalGrid(client_app(), persons(18)))
    for one in reports:
        assert one.lines[0].released["first"][0] == pytest.approx(0.1, abs=0.1)


def test_the_data_of_the_owner_reach_the_sum_and_nobody_else(tmp_path):
    config = MeanConfig(target_epsilon=60.0, delta=0.05)
    experiment = runs.begin(Given(), config, PROMISE, tmp_path / "run", "test")
    app = client_app(lambda _plan, _state: np.array([-0.1, 0.0, 0.0], np.float32))
    for one in trained(experiment, LocalGrid(app, persons(18))):
        assert one.lines[0].released["first"][0] == pytest.approx(-0.1, abs=0.1)
        assert one.lines[0].evaluation == {}  # nobody real is met


@pytest.mark.parametrize("stage", [messages.KEYS, messages.SHARES, messages.VECTORS, messages.OPEN])
def test_two_devices_drop_out_at_any_stage(tmp_path, stage):
    experiment, _ = begun(tmp_path, num_updates=1)

    def lost(node: int, kind: str) -> bool:
        return kind == f"query.{stage}" and node in (1000, 1001)

    trained(experiment, LocalGrid(client_app(), persons(SLOTS), lost))
    present = SLOTS if stage == messages.OPEN else SLOTS - 2
    assert experiment.runs[0].open_ledger().persons == present


def test_a_round_below_the_promise_is_given_up_and_others_are_asked(tmp_path):
    experiment, _ = begun(tmp_path, num_updates=1)
    dropped: list[int] = []

    def lost(node: int, kind: str) -> bool:
        """The first three who are asked for their vector stay silent."""
        if kind == f"query.{messages.VECTORS}" and len(dropped) < 3:
            dropped.append(node)
            return True
        return node in dropped and kind == f"query.{messages.VECTORS}"

    grid = LocalGrid(client_app(), persons(12), lost)
    trained(experiment, grid)
    assert experiment.runs[0].open_ledger().persons == SLOTS
    asked = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "query.keys"]
    assert set(asked[:SLOTS]).isdisjoint(asked[SLOTS:])
    assert len(asked) == 2 * SLOTS
    opened = {m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "query.open"}
    assert opened == set(asked[SLOTS:])  # nothing of the first round was opened


def test_nobody_is_charged_if_every_round_is_given_up(tmp_path):
    experiment, _ = begun(tmp_path)

    def lost(node: int, kind: str) -> bool:
        return kind == f"query.{messages.VECTORS}" and node >= 1003

    with pytest.raises(ValueError, match="10 rounds in a row"):
        trained(experiment, LocalGrid(client_app(), persons(SLOTS), lost))
    assert charged(tmp_path) == 0


def test_a_release_whose_masks_cannot_be_opened_is_lost_and_charged(tmp_path):
    experiment, _ = begun(tmp_path, num_updates=2)
    answers = 0

    def lost(_node: int, kind: str) -> bool:
        nonlocal answers
        answers += kind == f"query.{messages.OPEN}"
        return kind == f"query.{messages.OPEN}" and answers <= SLOTS  # all of the first round

    reports = trained(experiment, LocalGrid(client_app(), persons(30), lost))
    assert [one.updates for one in reports] == [1, 2]
    ledger = experiment.runs[0].open_ledger()
    assert sum(stream.releases for stream in ledger.streams) == 3
    assert ledger.persons == 3 * SLOTS  # those of the lost release do not come again


def test_a_device_that_sends_random_shares_costs_no_release_and_is_not_asked_again(
    tmp_path, monkeypatch
):
    """It sends no vector, so that it is not charged, and its masks could not be opened."""
    experiment, _ = begun(tmp_path, num_updates=2)
    attacker = 1000
    pass_on = Round.pass_on

    def random_shares(one, sealed):
        return pass_on(
            one,
            {
                person: {place: os.urandom(len(share)) for place, share in shares.items()}
                if person == 0
                else shares
                for person, shares in sealed.items()
            },
        )

    def lost(node: int, kind: str) -> bool:
        return node == attacker and kind == f"query.{messages.VECTORS}"

    monkeypatch.setattr(Round, "pass_on", random_shares)
    grid = LocalGrid(client_app(), {attacker: {"person": 0}}, lost)
    joins = iter(range(1, 40))

    def wave() -> list[int]:
        """As many new people as fill a release beside the attacker."""
        charged_now = experiment.runs[0].open_ledger().persons
        while len(grid.contexts) < charged_now + SLOTS:
            person = next(joins)
            grid.contexts |= LocalGrid(client_app(), {1000 + person: {"person": person}}).contexts
        return list(grid.contexts)

    monkeypatch.setattr(grid, "get_node_ids", wave)
    reports = trained(experiment, grid)
    assert [one.updates for one in reports] == [1, 2]
    asked = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "query.keys"]
    assert asked.count(attacker) == 1
    ledger = experiment.runs[0].open_ledger()
    assert sum(stream.releases for stream in ledger.streams) == 2
    assert 0 not in {p for s in ledger.streams for b in s.persons.blocks for p in range(*b)}


def test_a_killed_server_loses_one_charged_release_and_goes_on(tmp_path):
    """kill -9 between the charge and the release."""
    code = (
        "import sys, pathlib; sys.path[:0] = sys.argv[2:]\n"
        "import test_training_on_devices as t\n"
        "t.killed_after_the_charge(pathlib.Path(sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    experiment, promise = runs.go_on(tmp_path / "run")
    assert charged(tmp_path) == 2  # one was released
    reports = trained(experiment, LocalGrid(client_app(), persons(40)), promise)
    assert [one.updates for one in reports] == [2, 3]
    ledger = experiment.runs[0].open_ledger()
    assert sum(stream.releases for stream in ledger.streams) == 4
    assert ledger.persons == 4 * SLOTS
    assert {one.status for one in sotto.verify(tmp_path / "run").values()} == {"verified"}


def killed_after_the_charge(path: Path) -> None:
    """Begins a run, and dies when the masks of its second release are asked for."""
    entries = {**registry.entries(), Mean.name: registry.Entry(f"{__name__}:Mean", "a mean")}
    registry.entries = lambda: entries  # type: ignore[assignment]
    asked = 0

    def lost(_node: int, kind: str) -> bool:
        nonlocal asked
        asked += kind == f"query.{messages.OPEN}"
        if asked == SLOTS + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    trained(begun(path)[0], LocalGrid(client_app(), persons(40), lost))


def test_too_few_new_people_are_said_plainly(tmp_path):
    experiment, _ = begun(tmp_path)
    with pytest.raises(ValueError, match=r"3 of 9 connected people can be charged \(others took"):
        trained(experiment, LocalGrid(client_app(), persons(9)))
    assert charged(tmp_path) == 1
    with pytest.raises(ValueError, match="3 people's devices are connected, and a release needs 4"):
        trained(runs.go_on(tmp_path / "run")[0], LocalGrid(client_app(), persons(3)))


def test_the_server_sees_keys_seals_and_masked_numbers_only(tmp_path):
    experiment, _ = begun(tmp_path, num_updates=1)
    grid = LocalGrid(client_app(), persons(SLOTS))
    trained(experiment, grid)
    seen = {frozenset(record) for m in grid.seen for record in m.content.config_records.values()}
    enrolled, vector = ["persons", "protocol"], ["value", "unread"]
    assert seen == {frozenset(x) for x in (enrolled, ["value"], ["places", "values"], vector)}
    left = {name for context in grid.contexts.values() for name in context.state}
    assert left == {f"begun-{person}" for person in range(SLOTS)}  # ids of rounds, and no secret


def test_simulated_people_share_nodes_and_drop_out(tmp_path):
    experiment, _ = begun(tmp_path)
    app = client_app(people=60, present=Unreliable(0.2, 1))
    reports: list = []
    network = Network(LocalGrid(app, hosts(2)), 0.1, simulated=True)
    runs.train(experiment, PROMISE, network, reports.append)
    assert len(reports) == 3
    ledger = experiment.runs[0].open_ledger()
    charged_for = sum(stream.releases for stream in ledger.streams)  # some may be lost
    assert PROMISED * charged_for <= ledger.persons <= SLOTS * charged_for


def test_drop_outs_are_as_frequent_as_stated_at_every_stage():
    people, habits = range(4000), Unreliable(0.4, 7)
    stages = (messages.KEYS, messages.SHARES, messages.VECTORS, messages.OPEN)
    present = [sum(habits(bytes(16), p, stage) for p in people) / 4000 for stage in stages]
    assert present == pytest.approx([0.9, 0.8, 0.7, 0.6], abs=0.05)


def test_a_node_speaks_for_one_person_and_the_first_claim_counts():
    grid = LocalGrid(client_app(), {1000: {"person": 3}, 1001: {"person": 3}, 1002: {"person": -1}})
    assert Network(grid, 0.1).people() == [3]
    many = LocalGrid(client_app(people=60), hosts(2))
    assert Network(many, 0.1).people() == []


# --- devices that are asked for other things -----------------------------------------------------


def plan() -> Plan:
    return Plan(Mean(), MeanConfig(), PROMISE, 3)


def asked(grid: LocalGrid, stage: str, content: RecordDict) -> RecordDict:
    (answer,) = grid.send_and_receive([Message(content, 1000, f"query.{stage}")], timeout=1)
    return answer.content


def test_a_device_answers_for_its_own_person_only():
    grid = LocalGrid(client_app(), persons(1))
    request = {p: messages.of_bytes(b"") for p in (0, 1)}
    content = messages.content(request, plan().to_json(), bytes(16))
    assert set(messages.people_in(asked(grid, messages.KEYS, content))) == {0}


def test_a_device_that_has_not_begun_the_round_gives_nothing():
    grid = LocalGrid(client_app(), persons(1))
    first = {0: messages.of_bytes(b"")}
    asked(grid, messages.KEYS, messages.content(first, plan().to_json(), bytes(16)))
    other = messages.content(first, plan().to_json(), b"another round id")
    for stage in (messages.SHARES, messages.VECTORS, messages.OPEN):
        assert messages.people_in(asked(grid, stage, other)) == {}


@pytest.mark.parametrize("change", [{"promised": PROMISED - 1}, {"colluding": 1}, {"bits": 20}])
def test_the_terms_of_a_round_do_not_change(change, caplog):
    """The shares of noise, and how few devices a sum may have, follow from them."""
    grid = LocalGrid(client_app(), persons(1))
    first = {0: messages.of_bytes(b"")}
    asked(grid, messages.KEYS, messages.content(first, plan().to_json(), bytes(16)))
    changed = Plan(Mean(), MeanConfig(), dataclasses.replace(PROMISE, **change), 3)
    assert changed.promise != PROMISE
    content = messages.content(first, changed.to_json(), bytes(16))
    assert messages.people_in(asked(grid, messages.SHARES, content)) == {}
    assert "the terms of a round have changed" in caplog.text


def test_an_error_on_a_device_says_nothing_to_the_server(caplog):
    """Flower would send the text of an exception to the server."""

    def broken(_plan, _state):
        raise RuntimeError("secret: this person is ill")

    grid = LocalGrid(client_app(broken), persons(SLOTS))
    network = Network(grid, 0.1)
    assert network.people() == list(range(SLOTS))
    real = Plan(Given(), MeanConfig(), PROMISE, 3)
    one, settings = Round(real.terms(bytes(16)), 3), real.to_json()
    ask = functools.partial(network.ask, settings=settings, round_id=bytes(16))
    nothing = {p: messages.of_bytes(b"") for p in range(SLOTS)}
    seats = one.begin(ask(messages.KEYS, nothing, read=messages.bytes_in))
    sealed = ask(
        messages.SHARES, {p: messages.of_seat(s) for p, s in seats.items()}, read=messages.places_in
    )
    passed = {p: messages.of_places(s) for p, s in one.pass_on(sealed).items()}
    state = plan().of_state(plan().first)
    found = ask(messages.VECTORS, passed, read=messages.bytes_in, state=state)
    assert found == {}
    assert "RuntimeError" in caplog.text
    assert "ill" not in caplog.text
    assert all(b"ill" not in str(m.content).encode() for m in grid.seen)


def test_real_people_are_not_simulated(tmp_path):
    class Real(Mean):
        name = "test-real"

        def release(self, config):
            return dataclasses.replace(super().release(config), population="real")

    real = Plan(Real(), MeanConfig(), PROMISE, 3)
    with pytest.raises(ProtocolError, match="real people"):
        simulated(real, None)
    assert simulated(plan(), None) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        "no JSON",
        "[]",
        '{"algorithm": "dppg"}',
        '{"protocol": 2, '
        '"algorithm": "os:system", "config": {}, "promised": 3, "colluding": 0, "bits": 16, '
        '"horizon": 1, "parts": {}, "shares": {}}',
        '{"protocol": 2, '
        '"algorithm": "dppg", "config": {"env_id": "evil:Env-v0"}, "promised": 3, '
        '"colluding": 0, "bits": 16, "horizon": 1, "parts": {}, "shares": {}}',
        '{"protocol": 2, '
        '"algorithm": "dppg", "config": {"strange": 1}, "promised": 3, "colluding": 0, '
        '"bits": 16, "horizon": 1, "parts": {}, "shares": {}}',
        '{"protocol": 2, '
        '"algorithm": "test-mean", "config": {}, "promised": 4, "colluding": 0, "bits": 24, '
        '"horizon": 1, "parts": [], "shares": {}}',
        '{"protocol": 2, '
        '"algorithm": "test-mean", "config": {}, "promised": 4, "colluding": 0, "bits": 24, '
        '"horizon": 1, "parts": {"vector": {"clip_norm": NaN}}, "shares": {}}',
    ],
)
def test_a_plan_of_another_form_is_refused_and_imports_nothing(wrong):
    with pytest.raises(ProtocolError):
        Plan.from_json(wrong)
    assert "evil" not in sys.modules


class Other(Mean):
    """The algorithm of another version, whose calibration finds another noise."""

    factor = 0.5

    def release(self, config):
        part = (release := super().release(config)).parts["vector"]
        other = sotto.Part(
            clip_norm=part.clip_norm, noise_multiplier=self.factor * part.noise_multiplier
        )
        return dataclasses.replace(release, parts={"vector": other})


def test_a_device_with_another_noise_than_the_server_states_takes_no_part(
    tmp_path, monkeypatch, caplog
):
    """The sums would have less noise than the certificate says."""
    experiment, _ = begun(tmp_path, num_updates=1)
    read = Plan.from_json
    monkeypatch.setattr(
        Plan, "from_json", lambda *args: dataclasses.replace(read(*args), algorithm=Other())
    )
    with pytest.raises(ValueError, match=r"every device refused, failed .*the devices' logs say"):
        trained(experiment, LocalGrid(client_app(), persons(6)))
    assert charged(tmp_path) == 0
    z = Mean().release(MeanConfig()).parts["vector"].noise_multiplier
    assert re.search(
        f"server states the noise .*'noise_multiplier': {z}.*, and this device computes "
        f".*'noise_multiplier': {z / 2}.*; install the server's version",
        caplog.text,
    )


def test_a_device_makes_the_stated_noise_if_its_own_calibration_differs_by_rounding():
    server = Plan(Mean(), MeanConfig(), PROMISE, 3)
    stated = Plan.from_json(server.to_json())
    rounded = type("Rounded", (Other,), {"factor": 1 + 1e-9})()
    device = dataclasses.replace(stated, algorithm=rounded)
    assert device.algorithm.release(MeanConfig()).parts != server.shared.release.parts
    assert device.shared.statement == server.shared.statement


@pytest.mark.parametrize("factor", [1 - 1e-5, 1 + 1e-5])
def test_a_difference_beyond_rounding_is_another_noise(factor):
    stated = Plan.from_json(Plan(Mean(), MeanConfig(), PROMISE, 3).to_json())
    device = dataclasses.replace(stated, algorithm=type("Near", (Other,), {"factor": factor})())
    with pytest.raises(ProtocolError, match="the server states the noise"):
        _ = device.shared


def test_shares_that_do_not_follow_from_the_stated_noise_are_refused():
    plain = json.loads(plan().to_json())
    plain["shares"]["vector"]["variance"] *= 1 + 1e-12
    with pytest.raises(ProtocolError, match="the server states the noise"):
        _ = Plan.from_json(json.dumps(plain)).shared


def test_a_plan_survives_its_message():
    again = Plan.from_json(plan().to_json())
    assert again.shared.statement == plan().shared.statement
    assert (again.promise, again.horizon, again.config) == (plan().promise, 3, MeanConfig())


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (None, "no public state"),
        ([], "not one of this training"),
        ([np.zeros(3, np.float32)], "not one of this training"),
        ([np.zeros((), np.float64)], "not one of this training"),
    ],
)
def test_states_of_another_form_are_refused(arrays, text):
    found = RecordDict() if arrays is None else RecordDict({"state": ArrayRecord(arrays)})
    with pytest.raises(ProtocolError, match=text):
        plan().state_in(found)


def test_pickles_are_never_read():
    class Evil:
        def __reduce__(self):
            return os.mkdir, ("evil",)

    data = io.BytesIO()
    np.save(data, np.array([Evil()], object), allow_pickle=True)
    array = Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=data.getvalue())
    found = RecordDict({"state": ArrayRecord({"0": array})})
    with pytest.raises(ProtocolError, match="no public state"):
        plan().state_in(found)


@pytest.mark.parametrize(
    ("read", "record"),
    [
        (messages.bytes_in, {}),
        (messages.bytes_in, {"value": 3}),
        (messages.vector_in, {"value": b"a"}),
        (messages.vector_in, {"value": b"a", "unread": [1.5]}),
        (messages.vector_in, {"unread": [1]}),
        (messages.places_in, {"places": [1], "values": []}),
        (messages.places_in, {"places": [1, 1], "values": [b"a", b"b"]}),
        (messages.places_in, {"places": [1.5], "values": [b"a"]}),
        (messages.places_in, {"places": [1], "values": ["a"]}),
        (messages.seat_in, {"places": [1], "values": [b"a"], "place": 1}),
        (messages.seat_in, {"places": [1], "values": [b"a"], "place": 1, "people": 2.0}),
        (messages.question_in, {"active": [1], "dropped": [2]}),
        (messages.question_in, {"active": [True], "dropped": [2], "count": 3}),
        (messages.question_in, {"active": 1, "dropped": [2], "count": 3}),
    ],
)
def test_records_of_another_form_are_refused(read, record):
    with pytest.raises(ProtocolError):
        read(ConfigRecord(record))


def test_terms_of_another_form_are_refused():
    for settings in ("{", "{}", '{"bits": "16", "promised": 3, "colluding": 0}'):
        with pytest.raises(ProtocolError):
            messages.terms_in(messages.content({}, settings, bytes(16)))
    with pytest.raises(ProtocolError, match="settings"):
        messages.terms_in(RecordDict())


def test_a_run_without_a_promise_is_no_run_on_devices(tmp_path):
    experiment, _ = begun(tmp_path)
    (experiment.path / "devices.json").unlink()
    with pytest.raises(ValueError, match="not a run on devices"):
        runs.go_on(tmp_path / "run")


def test_a_kill_while_a_run_is_made_leaves_one_that_goes_on_or_none(tmp_path, monkeypatch):
    """Without its promise a run could not go on, and would block its place."""
    kills: list[Path] = []
    write = os.replace

    def replace(new, place):
        write(new, place)
        if Path(place).parent == tmp_path / "run":  # what a kill after this file leaves behind
            kills.append(Path(shutil.copytree(tmp_path / "run", tmp_path / str(len(kills)))))

    monkeypatch.setattr(os, "replace", replace)
    begun(tmp_path)
    assert len(kills) == 2
    for folder in kills:
        if (folder / "config.json").is_file():
            assert runs.go_on(folder)[1] == PROMISE
        else:
            with pytest.raises(RunError, match="is not a run directory"):
                runs.go_on(folder)
    assert (kills[-1] / "config.json").is_file()


def test_a_run_on_devices_is_not_continued_with_the_servers_noise(tmp_path):
    """Its people were promised that the server sees sums only."""
    _, config = begun(tmp_path)
    with pytest.raises(ValueError, match="run on people's devices"):
        start.go_on(Mean(), config, tmp_path / "run")


@pytest.mark.parametrize(("promised", "colluding"), [(2, 0), (4, 2), (7, 0)])
def test_a_promise_that_masks_cannot_keep_leaves_no_files(tmp_path, promised, colluding):
    with pytest.raises(ValueError, match=r"promised"):
        runs.begin(Mean(), MeanConfig(), Promise(promised, colluding, 24), tmp_path / "run", "test")
    assert not (tmp_path / "run").exists()


def test_a_promise_that_all_slots_together_break_leaves_no_files(tmp_path):
    """One in twenty of a thousand may collude, and that is more than the promise covers."""

    class Many(Mean):
        def release(self, config):
            return dataclasses.replace(super().release(config), slots=1000, divisor=1000.0)

    with pytest.raises(ValueError, match="50 of 1000 devices are too many to collude"):
        runs.begin(Many(), MeanConfig(), Promise(30, 0, 24), tmp_path / "run", "test")
    assert not (tmp_path / "run").exists()


def test_a_training_on_devices_has_one_seed():
    """There is one ledger for all rounds."""
    training = on_devices(Mean(), None, PROMISE)
    with pytest.raises(ValueError, match="has one seed"):
        next(training.train(MeanConfig(), [0, 1], [], None, 0, []))


def test_every_device_draws_for_itself():
    """Else all simulated people would be one and the same."""
    keys = {jax.random.key_data(client._new_key()).tobytes() for _ in range(3)}
    assert len(keys) == 3


def test_who_is_present_almost_always():
    for people, drop_out in ((20, 0.3), (400, 0.3), (5, 0.0)):
        least = runs.least_present(people, drop_out, 1e-3)
        assert binom.cdf(least - 1, people, 1 - drop_out) <= 1e-3
        assert least == people or binom.cdf(least, people, 1 - drop_out) > 1e-3


def test_algorithms_of_other_kinds_are_refused_by_name():
    with pytest.raises(ValueError, match="cannot take part in ppo"):
        registry.algorithm_named("ppo").on_devices(None, 1)
