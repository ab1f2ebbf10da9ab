"""Continual counting by a binary tree, one Gaussian draw per node (Dwork et al., Chan et al. 2010).

Node t = 1, 2, ..., n holds the sum of releases t - low(t) + 1, ..., t, where low(t) is the largest
power of two that divides t. These are the nodes of a binary tree that prefix sums ever read. The
sum of the first t releases is that of the nodes t, t - low(t), ... down to 0, one per binary digit
1 of t. Each release completes exactly one node. So node sums are C x for a square, lower-triangular
C of zeros and ones, and the tree is a matrix factorization like any other (`correlated`). The
noise of release i is row i of C^-1 w.

Guarantee:
    The unit is a person who takes part once, under the adjacency of the stream. With noise of
    standard deviation `noise_multiplier * clip_norm * sensitivity(n)` on each node, all n prefix
    sums together are Gaussian differentially private with multiplier `noise_multiplier`. A person
    is in at most floor(log2 n) + 1 nodes, which is the squared column norm of C. Theorem 2' of
    docs/privacy.md, section 4, then applies, also to adaptive contributions (section 16 has the
    tree). A node's draw is used in every prefix that reads the node. Drawing it again for each
    prefix would cost privacy each time.
"""

import math

import numpy as np
from jaxtyping import Float64, Int


def sensitivity(horizon: int) -> float:
    """Returns the largest column norm of C, that of release 1: it is in the nodes 1, 2, 4, ..."""
    return math.sqrt(horizon.bit_length())


def prefix_nodes(horizon: int) -> Int[np.ndarray, " n"]:
    """Returns how many nodes, and so independent draws, each prefix sum reads; t = 1..n."""
    return np.array([t.bit_count() for t in range(1, horizon + 1)])


def noising_rows(start: int, stop: int) -> Float64[np.ndarray, "rows stop"]:
    """Returns rows start, ..., stop - 1 of C^-1.

    Row i is what release i adds to the noise of the prefix sum: the chain of nodes of prefix i + 1,
    less that of prefix i.
    """
    rows = np.zeros((stop - start, stop))
    for row, release in zip(rows, range(start, stop), strict=True):
        for prefix, sign in ((release + 1, 1.0), (release, -1.0)):
            while prefix:
                row[prefix - 1] += sign
                prefix &= prefix - 1  # removes its lowest digit 1
    return rows


def largest_row_sum(horizon: int) -> float:
    """Returns a bound on the sum of absolute values of a row of C^-1: two chains of nodes."""
    return 2.0 * horizon.bit_length()
