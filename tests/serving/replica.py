"""One process of a service, for tests that kill it: `python replica.py LEDGER PORT`.

It imports everything, and begins to serve when a line comes in: a restart then takes no time.
"""

import sys

from small_teacher import secret_rows

from sotto.privacy.answer_ledger import AnswerLedger
from sotto.serving.app import create_app
from sotto.serving.limits import Limits
from sotto.serving.server import Address, serve


def main() -> None:
    where, port = sys.argv[1], int(sys.argv[2])
    print("imported", flush=True)
    sys.stdin.readline()
    app = create_app(
        secret_rows,
        AnswerLedger.open(where, "service"),
        env_id="Fake-v0",
        limits=Limits(requests_per_second=1e4, burst=10_000),
    )
    serve(app, Address("127.0.0.1", port), lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
