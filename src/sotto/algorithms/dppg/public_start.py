"""Public start of DPPG: centre and scale of the policy's inputs, and a first policy.

Guarantee:
    Nothing here depends on data of the protected people. For the first policy that is the user's
    promise, and an assumption of the certificate (`sotto.privacy.claims.streams.FIRST_POLICY`).
"""

from dataclasses import replace
from pathlib import Path

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.release import DPPGState
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.policy_files import as_policy, read
from sotto.trees import at, repeated


def with_public_inputs(config: DPPGConfig, env: AnyEnvironment) -> AnyEnvironment:
    """Returns the environment with the public centre and scale of the settings, where given.

    Raises:
        ValueError: there is not one number for each of an observation, or they do not fit.
    """
    size = env.observation_size
    changes = {}
    for name in ("observation_centre", "observation_scale"):
        values = getattr(config, name)
        if values is None:
            continue
        if config.local_update == "visit-average":
            raise ValueError(f"visit-average counts visits as they are observed; leave {name} out")
        if len(values) != size:
            raise ValueError(
                f"{name} has {len(values)} values, and {config.env_id} observes {size}; give one "
                "for each"
            )
        changes[name] = values
    return replace(env, **changes)


def from_first_policy(config: DPPGConfig, drawn: DPPGState) -> DPPGState:
    """Returns the states before the first release, which start from the public policy, if any.

    Args:
        config: settings.
        drawn: states with random weights, leaves of shape [runs, ...].

    Raises:
        ValueError: the file is not a policy of this shape, or other settings do not fit it.
    """
    if config.first_policy is None:
        return drawn
    if config.observation_statistics:
        raise ValueError("observation_statistics change the inputs of first_policy; give one")
    if config.clip_norm_from in ("kl-quantile", "kl-markov"):
        raise ValueError(
            f"clip_norm_from {config.clip_norm_from} is about random weights, and not about "
            "first_policy; give clip_norm"
        )
    like = at(drawn.policy, 0)
    first = as_policy(read(Path(config.first_policy)), like, config.first_policy)
    runs = len(drawn.updates)
    policy = repeated(first, runs)
    return drawn._replace(policy=policy, ema=policy, tail=policy)
