"""Flags of tiny trainings, for tests of what is done with any run.

A new shape of PPO takes 1.7 seconds to compile, and one that was compiled before a quarter of a
second, so tests to which the shape does not matter share these.
"""

SMALL_PPO = (
    *("--num-envs", "2", "--num-steps", "16", "--total-steps", "64"),
    *("--hidden", "4", "--num-minibatches", "2"),
)
"""Two updates. A later flag counts in place of an earlier one."""

SMALL_DPPG = (
    *("--users-per-update", "4", "--steps-per-user", "16", "--total-steps", "640"),
    *("--hidden", "4", "--evaluation-episodes", "2", "--target-epsilon", "1.3"),
)
"""Ten updates of 4 people and 16 steps."""
