"""The directory of a service, from which it continues after a restart.

```
DIR/  service.json  ledger.sqlite  ledger.json  certificate.json  operator.sha256  digests.key
```

Several processes may serve one directory, and several machines copies of it if they share a ledger
in a database. They share the budget through the ledger. `service.json` is written last, so a
directory that has it is complete. The directory holds no tokens: the ledger and operator.sha256
hold hashes. The key in digests.key is secret, because with it and the ledger one can test guesses
of what was asked. It is never in the database, and copies of the directory need the same key. Only
the owner may read the directory and its files.
"""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from sotto.errors import RunError
from sotto.files import overwrite, private_directory, read_model, write_model
from sotto.frozen import FrozenModel
from sotto.privacy.answers.digests import DigestKey, DigestKeyLost
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.entries import now, versions
from sotto.privacy.ledger.spending import Budget
from sotto.runs import marks
from sotto.runs.directory import ledger_location, ledger_place
from sotto.serving.operator import OperatorToken

_SETTINGS = "service.json"
_OPERATOR = "operator.sha256"
_KEY = "digests.key"
_MARK_BYTES = 160  # a mark in JSON has fewer, and all of one length leave nothing of each other


class ServiceSettings(FrozenModel):
    """The contents of service.json.

    Attributes:
        run_id: name of the service in its ledger.
        run: absolute path of the run that is the teacher.
        env_id: environment in which it was trained.
        promise: settings, as flags, from which the statement in the ledger was made.
        ledger: name of a file in the directory, absolute path of a file, or SQLAlchemy URL.
        versions: versions of the software that made it.
        command: command that made it.
    """

    format: Literal[1] = 1
    run_id: str
    run: str
    env_id: str
    promise: dict[str, Any]
    ledger: str
    versions: dict[str, str]
    command: str
    created: str

    @classmethod
    def new(
        cls, *, run: Path, env_id: str, promise: dict[str, Any], ledger: str | None, command: str
    ) -> Self:
        """Returns the settings of a new service.

        Raises:
            RunError: the ledger's URL holds a password, which service.json would reveal.
        """
        return cls(
            run_id=uuid.uuid4().hex,
            run=str(run.absolute()),
            env_id=env_id,
            promise=promise,
            ledger=ledger_place(ledger),
            versions=versions(),
            command=command,
            created=now(),
        )


@dataclass(frozen=True)
class Service:
    """The directory of a service."""

    path: Path
    settings: ServiceSettings
    named_ledger: str | None = None  # what the user gave as --ledger

    @property
    def certificate(self) -> Path:
        """Path of the certificate, which is derived from the ledger."""
        return self.path / "certificate.json"

    def open_ledger(self) -> AnswerLedger:
        """Returns the ledger of the service.

        Raises:
            LedgerMismatch: it is that of another service.
            LedgerOlder: it is older than the certificate or the mark of the last answer here, so
                answers that were given are missing.
        """
        ledger = AnswerLedger.open(self._ledger_location, self.settings.run_id)
        marks.refuse_older(self.path, ledger)
        return ledger

    def write_certificate(self, ledger: AnswerLedger) -> None:
        """Writes the certificate that follows from the ledger now."""
        derive(ledger).write(self.certificate, mode=0o600)  # it names students

    def write_mark(self, ledger: AnswerLedger) -> None:
        """Writes the ledger's last entry into `ledger.json`, without which a ledger is older.

        It is done before every answer leaves, so it is overwritten in place and not synced.
        """
        text = f"{marks.mark(ledger).model_dump_json():<{_MARK_BYTES}}\n"
        overwrite(self.path / marks.FILE, text)

    def digest_key(self, ledger: AnswerLedger, *, renew: bool = False) -> DigestKey:
        """Returns the key by which repeated requests are recognised; the first start makes it.

        Args:
            ledger: ledger of the service.
            renew: whether to replace a lost key. Requests that were answered under the lost key
                are then refused when they are repeated.

        Raises:
            RunError: the key is lost.
        """
        file = self.path / _KEY
        if not file.exists() and not renew and ledger.has_keyed_digests():
            raise RunError(
                f"the key {file} is missing, by which the service recognises repeated requests; "
                "restore it from a backup or from another machine that serves this directory, or "
                "give --new-digest-key, with which repetitions of earlier requests are refused"
            )
        try:
            return DigestKey.create(file)
        except DigestKeyLost as error:
            raise RunError(f"{error}; restore it from a backup") from error

    def protect(self) -> None:
        """Lets only the owner read the directory; earlier versions did not."""
        self.path.chmod(0o700)
        for file in self.path.iterdir():
            if file.is_file() and not file.is_symlink():
                file.chmod(0o600)

    @property
    def operator(self) -> OperatorToken:
        """The operator's token, of which the directory holds the hash."""
        return OperatorToken(self.path / _OPERATOR)

    @property
    def _ledger_location(self) -> Path | str:
        return ledger_location(self.path, self.settings.ledger, self.named_ledger)


def is_service(path: Path) -> bool:
    """Returns whether a directory holds a service."""
    return (path / _SETTINGS).is_file()


def create_service(
    path: Path, settings: ServiceSettings, statement: AnswerStatement, budget: Budget
) -> Service:
    """Makes the directory and the ledger of a service; the settings are written last.

    Raises:
        RunError: `path` exists already.
        PrivacyError: the budget does not cover the statement, or the ledger cannot be written.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} exists and is no teacher's service; give another --out")
    elsewhere = None if settings.ledger == ledger_place(None) else settings.ledger
    service = Service(path, settings, elsewhere)
    with private_directory(path):
        ledger = AnswerLedger.create(
            service._ledger_location, settings.run_id, statement=statement, budget=budget
        )
        ledger.close()
        DigestKey.create(path / _KEY)
    write_model(path / _SETTINGS, settings)
    service.protect()
    return service


def open_service(path: Path, ledger: str | None = None) -> Service:
    """Returns the service in a directory.

    Args:
        path: the directory.
        ledger: value of --ledger; a ledger that only service.json names is not opened.

    Raises:
        RunError: there is no service, or its settings cannot be read.
    """
    file = path / _SETTINGS
    if not file.is_file():
        raise RunError(
            f"there is no teacher's service at {path}; start one with: "
            f"sotto serve teacher RUN --out {path}"
        )
    return Service(path, read_model(file, ServiceSettings), ledger)
