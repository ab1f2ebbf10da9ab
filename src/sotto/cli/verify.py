"""The commands `sotto verify` and `sotto schema`, for certificates without their run."""

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sotto.cli.terminal.options import Json, Page, RunPath
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.errors import visible
from sotto.privacy.bounds import guarantee

if TYPE_CHECKING:
    from sotto.privacy.certificates.lone import FileVerification

_EXIT_CODES = {"true": 0, "false": 2, "stale": 3, "unverifiable": 4}


@command("verify")
def verify(
    path: RunPath,
    /,
    ledger: str | None = None,
    signed_by: Path | None = None,
    page: Page = None,
    json: Json = False,
) -> int:
    """Verifies a certificate that somebody gave you: one file, without its run.

    The cost is computed again from the statements in the certificate, and every sentence is
    compared with them. The result is one of these.

      true           (exit code 0): the certificate follows from its statements
      false          (exit code 2): it contradicts its statements, or its ledger
      stale          (exit code 3): it was true when made; the ledger has gone on since
      unverifiable   (exit code 4): the file does not hold what it would take

    Exit code 2 also means that the input was refused.

    A certificate of status "described" is about a training that no ledger recorded (sotto certify
    dpsgd --out). It is computed again from the description in it, and is never stale.

    Without a ledger nobody can see whether the run released more later. In a run directory, use
    sotto certificate RUN --verify. A checker that imports nothing of sotto is
    tools/check_certificate.py.

    Examples:
      sotto verify certificate.json
      sotto verify certificate.json --ledger ledger.sqlite
      sotto verify certificate.json --signed-by operator.pub.pem
      sotto verify certificate.json --page result.pdf
      sotto verify certificate.json --json

    Args:
        path: File of the certificate.
        ledger: File or URL of the ledger, to compare the certificate with.
        signed_by: Public key in PEM. The file PATH.sig must be a signature by this key, which
            sotto certificate --sign writes.
    """
    from sotto.privacy.certificates.lone import verify_file
    from sotto.runs.printed.files import writer
    from sotto.runs.printed.page import page_of_verification

    if ledger is not None and "://" not in ledger and not Path(ledger).is_file():
        raise ValueError(f"there is no file {ledger}; give the ledger.sqlite of the certificate")
    write = None if page is None else writer(page)
    found = verify_file(path, ledger, signed_by)
    if write is not None:
        write(page_of_verification(found, path, signed_by))
        if not json:
            print(visible(f"wrote {page}"))
    stored = found.certificate
    if json:
        numbers = {} if stored is None else {"run_id": stored.run_id, "proof": stored.status}
        if stored is not None:
            numbers |= json_module.loads(stored.model_dump_json(include={"epsilon", "delta"}))
        lists = {"reasons": list(found.reasons), "corrections": list(found.corrections)}
        signed = {} if signed_by is None else {"signed": stored is not None}
        print_json({"status": found.status, **numbers, **signed, **lists})
        return _EXIT_CODES[found.status]
    for line in found.corrections:
        print(visible(f"Corrected words of an earlier version: {line}."))
    if stored is not None and found.status in ("true", "stale"):
        cost = f"{stored.status}, {guarantee(stored.epsilon, stored.delta)}"
        print(visible(f"{path} is {found.status}: {cost} ({_compared(found, ledger)})."))
        if signed_by is not None:
            print(visible(f"The key {signed_by} signed it."))
    else:
        more = f" (and {len(found.reasons) - 1} more)" if len(found.reasons) > 1 else ""
        print(
            visible(f"sotto: {path} is {found.status}: {found.reasons[0]}{more}"), file=sys.stderr
        )
    return _EXIT_CODES[found.status]


def _compared(found: "FileVerification", ledger: str | None) -> str:
    """Returns the comparison that gave this status, in words."""
    if found.certificate is not None and found.certificate.status == "described":
        return "it follows from somebody's description; no ledger recorded the training"
    if found.status == "stale":
        return "the ledger gave this at an earlier entry, and has gone on since"
    if ledger is not None:
        return "the ledger gives the same"
    return "it follows from its statements; only the ledger shows what was released since"


@command("schema")
def schema(json: Json = False) -> None:
    """Prints the JSON Schema of certificates, with every sentence that they can say.

    docs/certificates.md explains the format in words.

    Example:
      sotto schema > certificate.schema.json

    Args:
        json: Indents by two spaces in place of one.
    """
    from sotto.privacy.certificates.schema import schema as made

    if json:
        print_json(made())
    else:
        print(json_module.dumps(made(), indent=1, ensure_ascii=False))
