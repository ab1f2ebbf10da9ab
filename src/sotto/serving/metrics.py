"""Counters of the service, in the text format of Prometheus.

They are totals without any student's name, observation or answer.
"""

from collections import Counter

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters of one process since its start. It is not safe for several threads."""

    def __init__(self) -> None:
        self._answered_rows = 0
        self._charges = 0
        self._replays = 0
        self._refusals: Counter[str] = Counter()
        self._slower_than = [0] * len(_BUCKETS)
        self._seconds = 0.0

    def answered(self, rows: int, seconds: float, replayed: bool) -> None:
        """Counts an answered batch with its duration; a replayed batch was charged before."""
        self._answered_rows += rows
        if replayed:
            self._replays += 1
        else:
            self._charges += 1
        self._seconds += seconds
        for index, bound in enumerate(_BUCKETS):
            self._slower_than[index] += seconds > bound

    def refused(self, code: str) -> None:
        """Counts a refused or failed request by its error code (one of a fixed list)."""
        self._refusals[code] += 1

    def text(self) -> str:
        """Returns all counters as text."""
        answers = self._charges + self._replays
        lines = [
            *_counter(
                "answered_rows", "Rows answered, replayed ones included.", {"": self._answered_rows}
            ),
            *_counter(
                "charges", "Batches charged to the ledger and answered.", {"": self._charges}
            ),
            *_counter("replays", "Batches answered again under their key.", {"": self._replays}),
            *_counter(
                "refusals",
                "Requests refused, by error code.",
                {f'{{code="{code}"}}': count for code, count in sorted(self._refusals.items())},
            ),
            "# HELP sotto_answer_seconds From a batch's arrival to its answer.",
            "# TYPE sotto_answer_seconds histogram",
            *(
                f'sotto_answer_seconds_bucket{{le="{bound}"}} {answers - slower}'
                for bound, slower in zip(_BUCKETS, self._slower_than, strict=True)
            ),
            f'sotto_answer_seconds_bucket{{le="+Inf"}} {answers}',
            f"sotto_answer_seconds_sum {self._seconds:.6f}",
            f"sotto_answer_seconds_count {answers}",
        ]
        return "\n".join(lines) + "\n"


def _counter(name: str, meaning: str, values: dict[str, int]) -> list[str]:
    full = f"sotto_{name}_total"
    head = [f"# HELP {full} {meaning}", f"# TYPE {full} counter"]
    return head + [f"{full}{labels} {value}" for labels, value in values.items()]
