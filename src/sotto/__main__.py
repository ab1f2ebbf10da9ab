"""`python -m sotto` runs the command `sotto`."""

import sys

from sotto.cli import main

if __name__ == "__main__":
    sys.exit(main())
