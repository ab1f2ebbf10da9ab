"""One process of a service, for tests that kill it: `python replica.py LEDGER PORT DIGEST_KEY`.

It imports everything, and begins to serve when a line comes in: a restart then takes no time.
"""

import sys
from pathlib import Path

from small_teacher import teacher

from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.serving.app import create_app
from sotto.serving.server import Address, serve
from sotto.serving.traffic.limits import Limits


def main() -> None:
    where, port, digest_key = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    print("imported", flush=True)
    sys.stdin.readline()
    app = create_app(
        teacher(),
        AnswerLedger.open(where, "service"),
        DigestKey.create(digest_key),
        env_id="Fake-v0",
        limits=Limits(requests_per_second=1e4, burst=10_000),
    )
    serve(app, Address("127.0.0.1", port), lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
