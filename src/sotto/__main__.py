"""`python -m sotto` is `sotto`."""

import sys

from sotto.cli import main

if __name__ == "__main__":
    sys.exit(main())
