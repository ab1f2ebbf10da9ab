"""The descriptions of public examples: they parse, and the table in the documentation is true."""

import json
from pathlib import Path

import pytest

from sotto.cli import main
from sotto.privacy.bounds import at_least, at_most
from sotto.privacy.described.description import read

ROOT = Path(__file__).parent.parent.parent
FILES = {path.stem: path for path in (ROOT / "examples" / "dpsgd").glob("*.json")}
CHEAP = ("tf_mnist_lr", "opacus_mnist", "tf_mnist", "tf_mnist_less_noise", "jax_mnist")
"""Examples that are quick to compute: with and without a claim, and every kind of sampling."""


def table() -> dict[str, list[str]]:
    """The cells of each row of the documentation's table, by the name of the example."""
    text = (ROOT / "docs" / "other_trainings.md").read_text()
    lines = text.split("## Ten public examples")[1].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {name: cells for name, *cells in rows[1:]}


def test_every_example_parses_and_has_its_row() -> None:
    assert set(table()) == set(FILES)
    for path in FILES.values():
        d = read(path)
        assert d.source.startswith("https://github.com/")
        assert d.notes
        claimed = table()[path.stem][0]
        assert claimed == ("none" if d.claimed.epsilon is None else f"{d.claimed.epsilon:.4g}")


@pytest.mark.parametrize("name", CHEAP)
def test_the_table_says_what_the_command_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    claimed, accounted, proved, least, verdict, findings = table()[name]
    main(["certify", "dpsgd", "--from", str(FILES[name]), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert claimed == ("none" if said["claimed"] is None else f"{said['claimed']:.4g}")
    assert verdict == said["verdict"]
    assert [one.strip("`") for one in findings.split(", ")] == said["findings"]
    assert accounted == at_most(float(said["accounted"]))
    assert proved == at_most(float(said["proved"]))
    assert least == at_least(float(said["least"]))
