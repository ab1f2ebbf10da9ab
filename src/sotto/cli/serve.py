"""`sotto serve`: a trained run as a teacher behind an address."""

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from sotto.algorithms.kickstarting.teacher_run import TeacherRun
from sotto.cli.parsing import flags_given, parse, print_json
from sotto.errors import RunError
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.runs.directory import ledger_place
from sotto.runs.teachers import rows_to_serve, teacher_policies
from sotto.serving.directory import (
    Service,
    ServiceSettings,
    create_service,
    is_service,
    open_service,
)
from sotto.serving.limits import Limits
from sotto.serving.promise import Promise, check_teacher, promised


@dataclass(frozen=True)
class Where:
    """Where a service keeps its books, and where it listens."""

    out: Path
    """The service's directory: made at the first start, gone on with at every other."""
    ledger: str | None = None
    """SQLAlchemy URL (SQLite or PostgreSQL) or file of the ledger, instead of ledger.sqlite in the
    service's directory. With PostgreSQL, services on several machines can share it. It is given
    again at every start: a ledger that only a file names is not opened."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every network this machine is in."""
    port: int = 8000
    """Port to listen on; 0 takes any that is free."""
    tls_certificate: Path | None = None
    """PEM file of the server's certificate: with it, and --tls-key, the address is https."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""
    new_digest_key: bool = False
    """Make a new key of digests although the old one is lost: requests that were answered under
    the old one are refused when they are repeated."""
    max_rows: int = 256
    """Observations that may be asked about at once."""
    requests_per_second: float = 100.0
    """Requests that one student may send, on average."""
    burst: int = 200
    """Requests that one student may send at once after a pause."""
    json: bool = False
    """Print one JSON object once the service is ready, and nothing else."""


def serve_teacher(args: list[str]) -> int:
    """Runs `sotto serve teacher`."""
    default = _stored_promise(args)

    def run(
        path: tyro.conf.Positional[Path | None] = None,
        /,
        *,
        where: Where,
        promise: Promise = default,
    ) -> None:
        """Answers students over HTTP with a trained run's policy, under noise and a budget.

        The first start makes the directory --out, with a ledger that fixes what is promised. Every
        answer is charged there before it leaves. Starting again with the same --out goes on with
        the same ledger; RUN and the promise are then read from the directory. Students need a
        token each: sotto students issue DIR NAME.

        Examples:
          sotto serve teacher runs/shards --mechanism gaussian-policy --queries 20000 \\
            --target-epsilon 8 --out runs/service
          sotto serve teacher runs/ppo --concentration 5 --floor 0.1 --protect policy \\
            --policy-distance 0.001 --queries 5000 --target-epsilon 4 --out runs/service
          sotto serve teacher --out runs/service --host 0.0.0.0 \\
            --tls-certificate server.pem --tls-key server.key

        Args:
            path: directory of the teacher's run, or of several seeds; left out when going on.
        """
        _serve(path, where, promise, args)

    parse(run, args, "serve teacher")
    return 0


def _serve(run: Path | None, where: Where, promise: Promise, args: list[str]) -> None:
    from sotto.serving.app import create_app
    from sotto.serving.server import Address, serve

    address = Address(where.host, where.port, where.tls_certificate, where.tls_key)
    address.check()
    limits = Limits(
        max_rows=where.max_rows, requests_per_second=where.requests_per_second, burst=where.burst
    )
    again = is_service(where.out)
    if again:
        service = _go_on(run, where, promise)
        service.protect()
        teacher = teacher_policies(Path(service.settings.run))
    elif run is not None:
        teacher = teacher_policies(run)
        service = _begin(teacher, where, promise, args)
    else:
        raise RunError(
            f"there is no service at {where.out} to go on with; to start one, name the teacher's "
            "run: sotto serve teacher RUN"
        )
    ledger = service.open_ledger()
    try:
        check_teacher(teacher, ledger.statement, service.settings.env_id)
        service.write_certificate(ledger)
        app = create_app(
            rows_to_serve(teacher),
            ledger,
            service.digest_key(ledger, renew=where.new_digest_key),
            env_id=service.settings.env_id,
            limits=limits,
            is_operator=service.is_operator,
        )
        if address.in_clear_text:
            print(
                f"sotto: tokens and answers go over {where.host} in clear text; give "
                "--tls-certificate and --tls-key, or put a proxy with TLS in front",
                file=sys.stderr,
            )
        serve(app, address, lambda url: _announce(service, ledger, url, again, where.json))
        service.write_certificate(ledger)
    finally:
        ledger.close()


def _begin(teacher: TeacherRun, where: Where, promise: Promise, args: list[str]) -> Service:
    statement, budget = promised(promise, teacher)
    settings = ServiceSettings.new(
        run=teacher.path,
        env_id=teacher.env_id,
        promise=asdict(promise),
        ledger=where.ledger,
        command=shlex.join(["sotto", "serve", "teacher", *args]),
    )
    return create_service(where.out, settings, statement, budget)


def _go_on(run: Path | None, where: Where, promise: Promise) -> Service:
    """The service that was started before, if nothing else was asked for now."""
    service = open_service(where.out, where.ledger)
    stored, asked = service.settings.promise, asdict(promise)
    changed = [name for name in asked if asked[name] != stored[name]]
    if changed:
        raise ValueError(
            f"the service at {where.out} promised --{changed[0].replace('_', '-')} "
            f"{stored[changed[0]]}, which stays; leave it out, or start a new one with another "
            "--out"
        )
    if run is not None and str(run.absolute()) != service.settings.run:
        raise ValueError(
            f"the teacher of the service at {where.out} is {service.settings.run}; leave the run "
            "out, or start a new service with another --out"
        )
    if where.ledger is not None and ledger_place(where.ledger) != service.settings.ledger:
        raise ValueError(
            f"the ledger of the service at {where.out} is {service.settings.ledger}; leave out "
            "--ledger"
        )
    return service


def _stored_promise(args: list[str]) -> Promise:
    """What a service promised that is to go on; a new one has to say what it answers at most."""
    out = flags_given(args).get("out")
    if out is None or not is_service(Path(out)):
        return Promise(queries=tyro.MISSING, target_epsilon=tyro.MISSING)
    return Promise(**open_service(Path(out)).settings.promise)


def _announce(service: Service, ledger: AnswerLedger, url: str, again: bool, json: bool) -> None:
    statement, budget = ledger.statement, ledger.budget
    if json:
        print_json(
            {
                "url": url,
                "out": str(service.path),
                "created": not again,
                "queries": statement.queries,
                "answered": ledger.spent().answered,
                "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
            }
        )
        sys.stdout.flush()
        return
    place = service.named_ledger
    elsewhere = "" if place is None else f" --ledger {shlex.quote(place)}"
    print(f"{'Going on' if again else 'A new service'} in {service.path}: {statement.name}")
    print(f"{statement.unit_sentence}")
    print(
        f"{statement.queries:,} answers to all students together cost at most epsilon "
        f"{statement.planned_epsilon(budget.delta):.4g} at delta {budget.delta:.3g}; "
        f"{ledger.spent().answered:,} were given so far."
    )
    print(f"A token for a student:    sotto students issue {service.path} NAME{elsewhere}")
    print(f"A token for yourself:     sotto students operator {service.path}")
    print(f"Budgets, in a browser:    {url}")
    print(f"What a student does:      sotto train kickstart --teacher {url} --out OUT")
    print("Serving; Ctrl-C stops, and the same --out goes on.", flush=True)
