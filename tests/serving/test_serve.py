"""`sotto serve` and `sotto students`: what is kept in a directory, and how a service goes on."""

import functools
import json
import shlex
import signal
import stat
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from asking import ask
from commands import printed, refused, run_json
from served import running

from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.teacher_run import TeacherRun
from sotto.cli import main
from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.distances import ObservationDistance, PolicyDistance, TrainingShards
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.runs import checkpoints, training
from sotto.runs.agents.teachers import rows_to_serve, teacher_policies
from sotto.runs.directory import NOTHING_NAMED, Named, create_experiment, new_settings
from sotto.runs.registry import algorithm_named, config_to_json
from sotto.serving import server
from sotto.serving.app import create_app
from sotto.serving.client import RemoteTeacher
from sotto.serving.directory import open_service
from sotto.serving.promise import Promise, check_teacher, promised

GAUSSIAN = "--mechanism gaussian-policy --protect policy --policy-distance 0.001"
BUDGET = "--queries 500 --target-epsilon 2"


def untrained(path: Path, seeds: int) -> Path:
    """A run of ppo whose networks are still those of the beginning: as good a teacher as any."""
    import jax

    config = PPOConfig(hidden=(8,))
    settings = new_settings(
        algorithm="ppo",
        config=config_to_json(algorithm_named("ppo"), config),
        preset=None,
        seeds=tuple(range(seeds)),
        population="simulated",
        ledger=None,
        command="test",
    )
    experiment = create_experiment(path, settings, lambda _run: None)
    states = algorithm_named("ppo").initial_states(config, range(seeds))
    for index, run in enumerate(experiment.runs):
        checkpoints.save(run.checkpoints, 1, jax.tree.map(lambda x, i=index: x[i], states))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Directory of two teachers: `one`, and the ensemble `shards`."""
    folder = tmp_path_factory.mktemp("runs")
    untrained(folder / "one", 1)
    untrained(folder / "shards", 3)
    return folder


@functools.cache
def read_once(path: Path, *, named: Named = NOTHING_NAMED) -> TeacherRun:
    return teacher_policies(path, named=named)


@pytest.fixture
def started(monkeypatch) -> list:
    """Services that were started; nothing listens, and no run is read twice."""
    ready = []
    monkeypatch.setattr("sotto.cli.live.serve.teacher_policies", read_once)

    def serve(app, address, announce):
        announce("http://teacher.example")
        ready.append(app)

    monkeypatch.setattr(server, "serve", serve)
    return ready


def words(text: str, **places: Path) -> list[str]:
    return [str(places.get(word, word)) for word in text.split()]


def test_first_start_and_the_next(runs, started, tmp_path, capsys):
    places = {"RUN": runs / "one", "DIR": tmp_path / "service"}
    first = words(f"serve teacher RUN {GAUSSIAN} {BUDGET} --out DIR", **places)
    output = printed(capsys, *first)
    assert "A new service" in output
    assert f"sotto students issue {places['DIR']} NAME" in output
    assert "at most epsilon" in output
    service = open_service(places["DIR"])
    ledger = service.open_ledger()
    assert ledger.statement.distance == PolicyDistance(l2=0.001)
    assert ledger.statement.queries == 500
    assert 1.9 < ledger.statement.planned_epsilon(1e-5) <= 2
    token = ledger.add_student("ann")
    for again in (first, words("serve teacher --out DIR", **places)):
        assert "Continued service" in printed(capsys, *again)
    assert service.open_ledger().authenticate(token) == "ann"
    assert len(started) == 3
    kept = {path.name for path in places["DIR"].iterdir()}
    assert kept >= {"service.json", "ledger.sqlite", "certificate.json"}
    assert token not in (places["DIR"] / "service.json").read_text()


def test_json_says_where_it_is(runs, started, tmp_path, capsys):
    call = f"serve teacher RUN {GAUSSIAN} {BUDGET} --out {tmp_path / 's'}"
    said = run_json(capsys, *words(call, RUN=runs / "one"))
    assert (said["url"], said["created"], said["queries"]) == ("http://teacher.example", True, 500)


def test_several_seeds_are_shards(runs, started, tmp_path, capsys):
    out = tmp_path / "s"
    call = f"serve teacher RUN --mechanism gaussian-policy {BUDGET} --out {out}"
    assert main(words(call, RUN=runs / "shards")) == 0
    ledger = open_service(out).open_ledger()
    assert ledger.statement.distance == TrainingShards(teachers=3)
    assert "3 teachers" in capsys.readouterr().out


def test_a_vanishing_schedule_for_several_students(runs, started, tmp_path):
    out = tmp_path / "s"
    call = (
        f"serve teacher RUN --concentration 5 --floor 0.1 --protect policy --policy-distance 1e-4 "
        f"--schedule vanishing --queries-per-rollout 50 --rollouts 3 {BUDGET} --out {out}"
    )
    assert main(words(call, RUN=runs / "one")) == 0
    statement = open_service(out).open_ledger().statement
    assert (statement.queries, statement.queries_per_student) == (500, 150)
    assert statement.mechanism_at(2).concentration == pytest.approx(5 * 0.3**2)


def test_what_was_promised_stays(runs, started, tmp_path, capsys):
    places = {"ONE": runs / "one", "SHARDS": runs / "shards", "DIR": tmp_path / "s"}
    assert main(words(f"serve teacher ONE {GAUSSIAN} {BUDGET} --out DIR", **places)) == 0
    before = (places["DIR"] / "service.json").read_bytes()
    for more, says in (
        ("--queries 501", "--queries 500, which stays"),
        ("--target-epsilon 3", "--target-epsilon 2.0, which stays"),
        ("--floor 0.1", "--floor"),
        ("--ledger other.sqlite", "leave out --ledger"),
        ("SHARDS", "leave the run out"),
    ):
        assert says in refused(capsys, *words(f"serve teacher --out DIR {more}", **places))
    assert (places["DIR"] / "service.json").read_bytes() == before
    assert len(started) == 1


def test_another_run_in_the_teachers_place_is_refused(runs, started, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sotto.cli.live.serve.teacher_policies", teacher_policies)
    run, out = tmp_path / "run", tmp_path / "s"
    (runs / "shards").rename(run)
    call = f"serve teacher {run} --mechanism gaussian-policy {BUDGET} --out {out}"
    try:
        assert main(call.split()) == 0
    finally:
        run.rename(runs / "shards")
    (runs / "one").rename(run)
    try:
        assert main(words("serve teacher --out DIR", DIR=out)) == 2
    finally:
        run.rename(runs / "one")
    assert "is not the one that this service promised" in capsys.readouterr().err


def test_a_private_policy_needs_no_service(runs):
    teacher = replace(read_once(runs / "one"), private_training=True)
    with pytest.raises(ValueError, match="is private already"):
        promised(Promise(queries=9, target_epsilon=1.0), teacher)


def test_a_teacher_less_smooth_than_promised_is_refused(runs, monkeypatch):
    monkeypatch.setattr("sotto.privacy.answers.distances.OFF", 1e-10)  # this network has 1.3e-10
    teacher = read_once(runs / "one")
    settings = Promise(
        queries=9,
        target_epsilon=100.0,
        teacher_mechanism="gaussian-policy",
        protect="observation",
        observation_radius=0.01,
    )
    statement, _ = promised(settings, teacher)
    exact = {"lipschitz": teacher.lipschitz, "rounding": teacher.rounding}
    assert statement.distance == ObservationDistance(radius=0.01, **exact)
    check_teacher(teacher, statement, "CartPole-v1")
    with pytest.raises(ValueError, match="is not the one"):
        check_teacher(teacher, statement, "Acrobot-v1")
    for wrong, says in (
        ({"lipschitz": teacher.lipschitz / 2}, "is not the one"),
        ({"rounding": teacher.rounding / 2}, "is not the one"),
        ({"rounding": None}, "started by an earlier version"),
    ):
        distance = ObservationDistance(radius=0.01, **(exact | wrong))
        other = statement.model_copy(update={"distance": distance})
        with pytest.raises(ValueError, match=says):
            check_teacher(teacher, other, "CartPole-v1")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (f"RUN --out DIR {BUDGET} --concentration 5", "over the budget"),
        (f"RUN --out DIR {BUDGET}", "no noise brings 500 answers"),
        (f"RUN --out DIR {BUDGET} {GAUSSIAN} --concentration 5", "no concentration"),
        (f"RUN --out DIR {BUDGET} --protect training-shards", "several seeds"),
        (f"RUN --out DIR {BUDGET} --protect policy", "--policy-distance"),
        (f"RUN --out DIR {BUDGET} {GAUSSIAN} --queries-per-student 501", "queries_per_student"),
        (f"RUN --out DIR {BUDGET} --schedule vanishing", "--queries-per-rollout"),
        (f"RUN --out DIR {BUDGET} {GAUSSIAN} --floor 0.6", "floor"),
        (f"RUN --out DIR {BUDGET} {GAUSSIAN} --max-rows 0", "max_rows"),
        (f"RUN --out DIR {BUDGET} {GAUSSIAN} --requests-per-second nan", "requests_per_second"),
        (f"RUN --out DIR {BUDGET} {GAUSSIAN} --port 70000", "port"),
        (f"RUN --out DIR {BUDGET} {GAUSSIAN} --tls-key RUN", "both"),
        (
            f"RUN --out DIR {BUDGET} {GAUSSIAN} --tls-key MISSING --tls-certificate MISSING",
            "MISSING",
        ),
        (f"RUN --out DIR {BUDGET} {GAUSSIAN} --ledger postgresql://me:hush@host/x", "password"),
        (f"RUN --out DIR {BUDGET} {GAUSSIAN} --ledger mysql://host/x", "durable"),
        (f"MISSING --out DIR {BUDGET}", "no run at"),
        (f"--out DIR {BUDGET}", "name the teacher's run"),
        (f"RUN --out RUN {BUDGET} {GAUSSIAN}", "exists and is no teacher's service"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(runs, started, tmp_path, capsys, call, says):
    out = tmp_path / "s"
    error = refused(capsys, *words(f"serve teacher {call}", RUN=runs / "one", DIR=out))
    assert says in error
    assert "hush" not in error
    assert not out.exists()
    assert started == []


def test_students_by_name(runs, started, tmp_path, capsys):
    out = tmp_path / "s"
    assert main(words(f"serve teacher RUN {GAUSSIAN} {BUDGET} --out {out}", RUN=runs / "one")) == 0
    capsys.readouterr()
    assert main(["students", "issue", str(out), "ann", "--queries", "9"]) == 0
    issued = capsys.readouterr()
    token = issued.out.strip()
    assert len(token) > 40
    assert "ann's token" in issued.err
    ledger = open_service(out).open_ledger()
    assert ledger.authenticate(token) == "ann"
    assert "already" in refused(capsys, "students", "issue", str(out), "ann")
    ask(ledger, "ann", 4)
    listed = run_json(capsys, "students", "list", str(out))
    assert (listed["students"][0]["name"], listed["students"][0]["answered"]) == ("ann", 4)
    assert listed["total"]["answered"] == 4
    assert "4 of 500 answers" in printed(capsys, "students", "list", str(out))
    assert main(["students", "revoke", str(out), "ann"]) == 0
    assert ledger.authenticate(token) is None
    assert main(["students", "revoke", str(out), "ann"]) == 2
    assert "no teacher's service" in refused(capsys, "students", "list", str(tmp_path))


def test_the_operators_token_is_kept_as_a_hash(runs, started, tmp_path, capsys):
    out = tmp_path / "s"
    assert main(words(f"serve teacher RUN {GAUSSIAN} {BUDGET} --out {out}", RUN=runs / "one")) == 0
    service = open_service(out)
    assert not service.operator.matches("")
    tokens = [printed(capsys, "students", "operator", out).strip() for _ in range(2)]
    assert not service.operator.matches(tokens[0])
    assert service.operator.matches(tokens[1])
    file = out / "operator.sha256"
    assert tokens[1] not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_certificate_of_a_service(runs, started, tmp_path, capsys):
    out = tmp_path / "s"
    assert main(words(f"serve teacher RUN {GAUSSIAN} {BUDGET} --out {out}", RUN=runs / "one")) == 0
    ledger = open_service(out).open_ledger()
    ledger.add_student("ann")
    ask(ledger, "ann", 100)
    capsys.readouterr()
    assert main(["certificate", str(out), "--verify"]) == 3  # it is older than these answers
    assert "stale: it agrees with an earlier entry" in capsys.readouterr().out
    file = open_service(out).certificate
    before = file.read_bytes()
    certificate = run_json(capsys, "certificate", str(out))
    assert certificate["status"] == "proved"
    assert 0 < certificate["epsilon"] < 2
    assert file.read_bytes() == before  # shown, and not written
    run_json(capsys, "certificate", str(out), "--write")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # it names students
    page = tmp_path / "page.html"
    said = printed(capsys, "certificate", str(out), "--page", str(page))
    assert said.endswith(f"wrote {page}\n")
    assert page.is_file()
    file.unlink()
    run_json(capsys, "certificate", str(out))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "verified" in printed(capsys, "certificate", str(out), "--verify")


def test_a_ledger_that_is_older_than_the_certificate_is_refused(runs, started, tmp_path, capsys):
    """A restored one would give all of its answers once more, under the same epsilon."""
    out = tmp_path / "s"
    assert main(words(f"serve teacher RUN {GAUSSIAN} {BUDGET} --out {out}", RUN=runs / "one")) == 0
    service = open_service(out)
    ledger = service.open_ledger()
    ledger.add_student("ann")
    backup = (out / "ledger.sqlite").read_bytes()
    ask(ledger, "ann", 100)
    service.write_certificate(ledger)
    ledger.close()
    (out / "ledger.sqlite").write_bytes(backup)
    certificate, said = service.certificate.read_bytes(), "is older than what was made from it"
    for command in (
        f"serve teacher --out {out}",
        f"students issue {out} eve",
        f"certificate {out}",
    ):
        assert said in refused(capsys, *words(command))
    assert service.certificate.read_bytes() == certificate


def test_a_ledger_that_is_older_than_the_last_answer_is_refused(runs, started, tmp_path, capsys):
    """A killed service wrote its certificate when it started, and may have answered for months."""
    out = tmp_path / "s"
    assert main(words(f"serve teacher RUN {GAUSSIAN} {BUDGET} --out {out}", RUN=runs / "one")) == 0
    token = open_service(out).open_ledger().add_student("ann")
    with running(started[0]) as url, RemoteTeacher(url, token) as teacher:
        teacher.answer(np.zeros((40, 4)))
        backup = (out / "ledger.sqlite").read_bytes()
        teacher.answer(np.zeros((9, 4)))
    assert stat.S_IMODE((out / "ledger.json").stat().st_mode) == 0o600
    assert json.loads((out / "ledger.json").read_text())["charges"] == 49
    open_service(out).open_ledger()
    (out / "ledger.sqlite").write_bytes(backup)
    for command in (f"serve teacher --out {out}", f"students issue {out} eve"):
        said = refused(capsys, *words(command))
        assert "ledger.json" in said
        assert "is older than what was made from it" in said


def test_a_ledger_elsewhere(runs, started, tmp_path, postgresql_url, capsys):
    out = tmp_path / "s"
    call = f"serve teacher RUN {GAUSSIAN} {BUDGET} --out {out} --ledger {postgresql_url}"
    assert main(words(call, RUN=runs / "one")) == 0
    assert not (out / "ledger.sqlite").exists()
    run_id = open_service(out).settings.run_id
    assert AnswerLedger.open(postgresql_url, run_id).statement.queries == 500
    assert main(words("serve teacher --out DIR", DIR=out)) == 2  # only a file names it now
    assert "give --ledger postgresql" in capsys.readouterr().err
    assert main(words(f"serve teacher --out DIR --ledger {postgresql_url}", DIR=out)) == 0


def test_a_student_trains_with_a_teacher_behind_the_service(runs, tmp_path, monkeypatch, capsys):
    """Both commands, with HTTP between them, and the command that goes on after Ctrl-C."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    teacher = read_once(runs / "one")
    settings = Promise(
        queries=100,
        target_epsilon=50.0,
        teacher_mechanism="gaussian-policy",
        protect="policy",
        policy_distance=0.001,
    )
    statement, budget = promised(settings, teacher)
    where = tmp_path / "ledger.sqlite"
    ledger = AnswerLedger.create(where, statement=statement, budget=budget)
    token = ledger.add_student("ann")
    monkeypatch.setenv("SOTTO_TEACHER_TOKEN", token)
    out = tmp_path / "student"
    small = (
        "--num-envs 2 --num-steps 16 --total-steps 96 --queries-per-update 32 --radius chi-square"
    )
    key = DigestKey.create(tmp_path / "key")
    with running(create_app(rows_to_serve(teacher), ledger, key, env_id=teacher.env_id)) as url:
        call = f"train kickstart --teacher {url} {small} --out {out} --json"
        with monkeypatch.context() as patch:  # Ctrl-C after the first update
            patch.setattr(training, "_interruptible", lambda: nullcontext(lambda: True))
            assert main(call.split()) == 130
        told = shlex.split(capsys.readouterr().err.rpartition("continue with: ")[2])
        assert told[-2:] == ["--teacher", url]
        assert main([*told[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["updates"] == 3
    assert ledger.spent().answered == 96
    written = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert len(written) > 2
    assert [text for text in written if token.encode() in text] == []


def certificate_for_localhost(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate, and its key."""
    certificate, key = folder / "server.pem", folder / "server.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", certificate, "-keyout", key),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def test_a_real_start_with_tls_and_a_stop(runs, tmp_path, monkeypatch):
    """The whole command in a process of its own: answers over TLS, SIGTERM, certificate written."""
    certificate, key = certificate_for_localhost(tmp_path)
    out = tmp_path / "s"
    call = words(f"serve teacher RUN {GAUSSIAN} {BUDGET} --out {out}", RUN=runs / "one")
    tls = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("sotto"), *call, "--port", "0", "--json", *tls],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout
    text = ""
    while not text.endswith("\n}\n"):
        line = process.stdout.readline()
        assert line, (tmp_path / "errors").read_text()
        text += line
    url = json.loads(text)["url"]
    assert url.startswith("https://127.0.0.1:")
    token = open_service(out).open_ledger().add_student("ann")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(OSError, match="is not trusted"):
        RemoteTeacher(url, token)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with RemoteTeacher(url, token) as teacher:
        assert teacher.env_id == "CartPole-v1"
        assert teacher.answer(np.zeros((5, 4))).policies.shape == (5, 2)
    with pytest.raises(httpx.HTTPError):
        httpx.get(url.replace("https", "http"), trust_env=False)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.stdout.close()
    assert (tmp_path / "errors").read_text() == ""
    assert main(["certificate", str(out), "--verify"]) == 0
