"""The page of a shared budget: its products, and how many people are how near to it."""

from html import escape
from pathlib import Path

from sotto.files import write_whole
from sotto.privacy.bounds import at_most
from sotto.privacy.ledger.standing import BINS, Standing
from sotto.runs.report import elements

CAVEAT = (
    "Certified is the budget, from the first release on. What somebody has spent so far is no "
    "guarantee by itself, because what is released next may depend on earlier releases."
)
"""The difference between the budget and the amounts spent so far."""


def sentence(found: Standing) -> str:
    """Returns the statement that the budget certifies about all products together."""
    allowance = found.allowance
    return (
        f"All products together are (epsilon {at_most(allowance.epsilon)}, delta "
        f"{at_most(allowance.delta, 3)})-differentially private for each person: for everything "
        "that the person contributes to any of them, against contributing zero to all of them "
        "(zero-out adjacency). This assumes that a person has one number, and that data decide "
        "about participation through releases only."
    )


def write_page(found: Standing, path: Path) -> None:
    """Writes the page, which needs no network and no scripts; only its owner may read it.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, elements.page("A shared budget", _body(found)), 0o600)


def _body(found: Standing) -> list[str]:
    allowance = found.allowance
    refused = max((one.refused for one in found.streams), default=0)
    products = len({one.product for one in found.streams})
    return [
        "<h1>A shared budget</h1>",
        elements.paragraph(f"Created {found.created.replace('T', ' ')[:16]} UTC.", soft=True),
        '<div class="card"><div class="status">Proved for each person</div>'
        f'<div class="epsilon">ε = {at_most(allowance.epsilon)} '
        f"<small>at δ = {at_most(allowance.delta, 3)} for all products together</small></div>"
        f"<p>{escape(sentence(found))}</p></div>",
        elements.tiles(
            {
                "products": f"{products:,}",
                "people": f"{found.people:,}",
                "epsilon of the person who spent most": at_most(found.largest),
                "people refused by the dearest stream": f"{refused:,}",
            }
        ),
        elements.paragraph(CAVEAT, soft=True),
        elements.heading("Products"),
        *_streams(found),
        elements.heading("How near people are"),
        elements.paragraph(
            "Number of people by the share of the budget that they have used. A person who has "
            "used too much for a stream is refused there, and takes part in nothing that costs "
            "more than what is left."
        ),
        elements.bars(
            {
                f"{100 * bin // BINS} to {100 * (bin + 1) // BINS}%": count
                for bin, count in enumerate(found.histogram)
            }
        ),
        elements.heading("The nearest people"),
        *_people(found),
        elements.heading("Ledger"),
        elements.paragraph(f"Hash of the last entry: {found.head_hash}", soft=True),
    ]


def _streams(found: Standing) -> list[str]:
    if not found.streams:
        return [elements.paragraph("No product shares this budget yet.")]
    header = ("stream", "product", "people", "epsilon of each", "share", "refused now")
    rows = [
        (
            str(number),
            f"{one.name} ({one.product[:8]})",
            f"{one.people:,}",
            at_most(one.epsilon),
            f"{100 * one.share:.3g}%",
            f"{one.refused:,}",
        )
        for number, one in enumerate(found.streams)
    ]
    return [
        elements.table(header, rows),
        elements.paragraph(
            "The epsilon of a stream is its cost alone, to its horizon. Refused now are people of "
            "any product who are new in the stream and have too little left for it.",
            soft=True,
        ),
    ]


def _people(found: Standing) -> list[str]:
    if not found.nearest:
        return [elements.paragraph("Nobody has taken part yet.")]
    header = ("person", "spent epsilon", "used share", "room for a stream of epsilon", "streams")
    rows = [
        (
            str(one.person),
            at_most(one.epsilon),
            f"{100 * one.share:.3g}%",
            f"{one.room:.4g}",
            ", ".join(map(str, one.streams)),
        )
        for one in found.nearest
    ]
    return [elements.table(header, rows)]
