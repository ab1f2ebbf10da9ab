"""The command `sotto certify dpsgd`, on other people's trainings."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from sotto.cli.options import Json
from sotto.cli.parsing import command, print_json
from sotto.errors import visible

_EXIT_CODES = {"holds": 0, "false": 2, "vacuous": 2, "undecided": 4}


@command("certify dpsgd")
def dpsgd(
    described: Annotated[Path, arg(name="from")],
    json: Json = False,
) -> int:
    """Computes epsilon of a DP-SGD training that somebody made elsewhere, from its description.

    The facts are the words of whoever wrote the file. Only the arithmetic is checked here, so the
    answer is no certificate. docs/other_trainings.md explains the file and the findings.

      holds       (exit code 0): the claimed epsilon follows from the description
      false       (exit code 2): an attack shows a larger epsilon
      vacuous     (exit code 2): delta is so large that the claim protects nobody
      undecided   (exit code 4): neither

    Example:
      sotto certify dpsgd --from opacus.json

    Args:
        described: File of the description.
    """
    from sotto.privacy.described.description import read
    from sotto.privacy.described.findings import FINDINGS, analyse

    d = read(described)
    found = analyse(d)
    if json:
        print_json({"name": d.name, "delta": d.claimed.delta, **asdict(found)})
        return _EXIT_CODES[found.verdict]
    claim = "none stated" if found.claimed is None else f"{found.claimed:.4g}"
    print(visible(f"{d.name}: the claim is {found.verdict} at delta {d.claimed.delta:.3g}."))
    print("The facts are somebody's words; only the arithmetic is checked here.")
    print(f"  epsilon claimed                                  {claim}")
    print(f"  accounted for one run with Poisson sampling      {found.accounted:.4g}")
    print(f"  proved for what is described                     {found.proved:.4g}")
    print(f"  shown by an attack (at least)                    {found.least:.4g}")
    for name in found.findings:
        print(f"  {name}: {FINDINGS[name]}")
    return _EXIT_CODES[found.verdict]
