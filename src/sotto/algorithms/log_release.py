"""One release about people of an imported log, each of whom takes part once.

Guarantee:
    See `sotto.privacy.release.release`. In the ledger, a person has the number of their place in
    the log. So it refuses a second release about the same people.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from sotto.keys import keys_of
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.release import Release
from sotto.trees import single


def through_the_door(
    release: Release,
    ledger: Ledger,
    public: PyTree,
    people: PyTree,
    first: int,
) -> Any:
    """Charges the ledger, makes the release, and returns its log, with leaves in float64.

    Args:
        release: a release with horizon 1.
        ledger: ledger of people with the unit of the release.
        public: public state, without a leading axis.
        people: the log of every place, leaves of shape [slots, ...].
        first: number of the first place.

    Raises:
        PrivacyError: the budget does not cover it, or somebody was in another release.
    """
    state = single(public)
    units = jax.tree.map(np.asarray, people)
    stream = release.open([ledger], state, units)
    persons = np.arange(first, first + release.slots, dtype=np.int64)[None, None]
    units = jax.tree.map(lambda x: x[None, None], units)
    _, log, _ = stream.run(state, keys_of([0], 0), persons, units)
    return jax.tree.map(lambda x: np.asarray(x, np.float64)[0, 0], log)
