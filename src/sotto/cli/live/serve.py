"""`sotto serve`: answers students over HTTP with the policy of a trained run."""

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from sotto.algorithms.kickstarting.teacher_run import TeacherRun
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import flags_given, parse
from sotto.cli.terminal.settings import flags_of
from sotto.errors import RunError
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.bounds import guarantee
from sotto.runs.agents.teachers import rows_to_serve, teacher_policies
from sotto.runs.directory import Named, ledger_place
from sotto.serving.directory import (
    Service,
    ServiceSettings,
    create_service,
    is_service,
    open_service,
)
from sotto.serving.promise import Promise, check_teacher, promised
from sotto.serving.traffic.limits import Limits


@dataclass(frozen=True)
class Where:
    """Files and network address of a service, and limits on its requests."""

    out: Path
    """Directory of the service. The first start makes it, and later starts use it again."""
    ledger: str | None = None
    """SQLAlchemy URL (SQLite or PostgreSQL) or file of the ledger (default: ledger.sqlite in the
    service's directory). Services on several machines can share a PostgreSQL ledger. Give it again
    at every start, because a ledger that only a file names is not opened."""
    env_id: str | None = None
    """Environment of the teacher's run. It is needed at every start if its name has a module in it,
    because sotto never imports a module on the word of a file."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 stands for all networks of this machine."""
    port: int = 8000
    """Port to listen on; 0 takes any free port."""
    tls_certificate: Path | None = None
    """PEM file of the server's certificate. With it and --tls-key the service uses https."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies in front of the service, such as 10.0.0.0/8. Only a connection from one
    of them may say, by X-Forwarded-For, from which address its request comes."""
    new_digest_key: bool = False
    """Replace a lost key of digests. The service then refuses repetitions of requests that were
    answered under the lost key."""
    max_rows: int = 256
    """Largest number of observations in one request."""
    requests_per_second: float = 100.0
    """Average number of requests per second that one student may send."""
    burst: int = 200
    """Number of requests that one student may send at once after a pause."""
    json: bool = False
    """Print only one JSON object, once the service is ready."""


def serve_teacher(args: list[str]) -> int:
    """Runs `sotto serve teacher`."""
    where_flags, promise_flags = flags_of(Where), flags_of(Promise)
    default = promise_flags(**vars(_stored_promise(args)))

    def run(
        path: tyro.conf.Positional[Path | None] = None,
        /,
        *,
        service: Any,
        promise: Any = default,
    ) -> None:
        """Answers students over HTTP with the policy of a trained run, with noise and a budget.

        The first start makes the directory --out with a ledger that fixes the promise. Every answer
        is charged to the ledger before it is sent. A later start with the same --out continues with
        the same ledger, teacher and promise. Each student needs a token: sotto students issue DIR
        NAME.

        Examples:
          sotto serve teacher runs/shards --mechanism gaussian-policy --queries 20000 \\
            --target-epsilon 8 --out runs/service
          sotto serve teacher runs/ppo --concentration 5 --floor 0.1 --protect policy \\
            --policy-distance 0.001 --queries 5000 --target-epsilon 4 --out runs/service
          sotto serve teacher --out runs/service --host 0.0.0.0 \\
            --tls-certificate server.pem --tls-key server.key

        Args:
            path: Directory of the teacher's run, or of several seeds. Leave it out to continue.
        """
        _serve(path, service, Promise(**vars(promise)), args)

    run.__annotations__ |= {"service": where_flags, "promise": promise_flags}
    return parse(run, args, "serve teacher")


def _serve(run: Path | None, where: Where, promise: Promise, args: list[str]) -> None:
    from sotto.serving.app import create_app
    from sotto.serving.server import Address, serve

    address = Address(
        where.host, where.port, where.tls_certificate, where.tls_key, where.trusted_proxies
    )
    address.check()
    limits = Limits(
        max_rows=where.max_rows, requests_per_second=where.requests_per_second, burst=where.burst
    )
    again, named = is_service(where.out), Named(env_id=where.env_id)
    if again:
        service = _go_on(run, where, promise)
        service.protect()
        teacher = teacher_policies(Path(service.settings.run), named=named)
    elif run is not None:
        teacher = teacher_policies(run, named=named)
        service = _begin(teacher, where, promise, args)
    else:
        raise RunError(
            f"there is no service at {where.out} to continue; to start one, name the teacher's "
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
            is_operator=service.operator.matches,
            charged=lambda: service.write_mark(ledger),
        )
        if address.in_clear_text:
            print(
                f"sotto: tokens and answers are sent in clear text over {where.host}; give "
                "--tls-certificate and --tls-key, or use a proxy with TLS",
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
    """Returns the existing service.

    Raises:
        ValueError: the promise, the run or the ledger that was given is another one.
    """
    service = open_service(where.out, where.ledger)
    stored, asked = service.settings.promise, asdict(promise)
    changed = [name for name in asked if asked[name] != stored.get(name)]
    if changed:
        raise ValueError(
            f"the service at {where.out} promised --{changed[0].replace('_', '-')} "
            f"{stored.get(changed[0])}, which stays; leave it out, or start a new one with another "
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
    """Returns the stored promise of an existing service; a new one has required flags."""
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
        return
    place = service.named_ledger
    elsewhere = "" if place is None else f" --ledger {shlex.quote(place)}"
    print(f"{'Continued' if again else 'A new'} service in {service.path}: {statement.name}")
    print(f"{statement.unit_sentence}")
    print(
        f"{statement.queries:,} answers to all students together cost at most "
        f"{guarantee(statement.planned_epsilon(budget.delta), budget.delta)}. "
        f"So far {ledger.spent().answered:,} were given."
    )
    print(f"Token for a student:      sotto students issue {service.path} NAME{elsewhere}")
    print(f"Token for yourself:       sotto students operator {service.path}")
    print(f"Budgets in a browser:     {url}")
    print(f"Command of a student:     sotto train kickstart --teacher {url} --out OUT")
    print("Serving. Ctrl-C stops the service; the same --out continues it.", flush=True)
