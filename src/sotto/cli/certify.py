"""The command `sotto certify dpsgd`, on other people's trainings."""

import sys
from dataclasses import asdict
from getpass import getpass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.errors import visible
from sotto.extras import require
from sotto.privacy.bounds import at_least, at_most

_EXIT_CODES = {"holds": 0, "false": 2, "vacuous": 2, "undecided": 4}


@command("certify dpsgd")
def dpsgd(
    described: Annotated[Path, arg(name="from")],
    out: Path | None = None,
    sign: Path | None = None,
    json: Json = False,
) -> int:
    """Computes epsilon of a DP-SGD training that somebody made elsewhere, from its description.

    The facts are the words of whoever wrote the file. Only the arithmetic is checked here.
    docs/other_trainings.md explains the file and the findings. The answer is about the claim.

      holds       (exit code 0): the claimed epsilon follows from the description
      false       (exit code 2): an attack shows a larger epsilon
      vacuous     (exit code 2): delta is so large that the claim protects nobody
      undecided   (exit code 4): neither

    Exit code 2 also means that the input was refused.

    With --out, a certificate states the epsilon that is proved, also where the claim is false. Its
    status is "described", because no ledger recorded the training. If nothing is proved, or delta
    is vacuous, no file is written, and a sentence names the reason.

    Examples:
      sotto certify dpsgd --from opacus.json
      sotto certify dpsgd --from opacus.json --out certificate.json

    Args:
        described: File of the description.
        out: New file for the certificate.
        sign: Private Ed25519 key in PEM. The signature is written to OUT.sig. sotto verify
            --signed-by checks it.
    """
    from sotto.privacy.certificates.described import certified, refusal
    from sotto.privacy.described.description import read
    from sotto.privacy.described.findings import FINDINGS, analyse

    if sign is not None and out is None:
        raise ValueError("--sign signs a certificate; give its file with --out")
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} for the certificate; make it first")
    if out is not None and out.exists():
        raise ValueError(f"the file {out} is there and is not replaced; move it away")
    signer = None
    if sign is not None:
        require("cryptography")
        from sotto.privacy.certificates.signature import Signer

        signer = Signer(sign, lambda: getpass(f"Passphrase of {sign}: "))
    d = read(described)
    found = analyse(d)
    refused = refusal(found) if out is not None else ""
    written = []
    if out is not None and not refused:
        certified(d, found).write(out)
        written = [out] if signer is None else [out, signer.sign(out)]
    if json:
        files = {"written": [str(one) for one in written], "refused": refused or None}
        shown = {} if out is None else files
        print_json({"name": d.name, "delta": d.claimed.delta, **asdict(found), **shown})
        return _EXIT_CODES[found.verdict]
    claim = "none stated" if found.claimed is None else at_most(found.claimed)
    verdict = "holds" if found.verdict == "holds" else f"is {found.verdict}"
    print(visible(f"{d.name}: the claim {verdict} at delta {d.claimed.delta:.3g}."))
    print("The facts are somebody's words; only the arithmetic is checked here.")
    print(f"  epsilon claimed                                  {claim}")
    print(f"  accounted for one run with Poisson sampling      {at_most(found.accounted)}")
    print(f"  proved for what is described                     {at_most(found.proved)}")
    if found.proved_for_person is not None:
        print(
            f"  proved for a person                              {at_most(found.proved_for_person)}"
        )
    print(f"  shown by an attack (at least)                    {at_least(found.least)}")
    for name in found.findings:
        print(f"  {name}: {FINDINGS[name]}")
    for one in written:
        print(visible(f"wrote {one}"))
    if refused:
        print(visible(f"sotto: no certificate was written: {refused}"), file=sys.stderr)
    return _EXIT_CODES[found.verdict]
