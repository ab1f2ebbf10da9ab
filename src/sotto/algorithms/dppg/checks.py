"""Which settings of private policy gradient contradict each other, or cannot be certified."""

from typing import TYPE_CHECKING

from sotto.privacy.units import Adjacency

if TYPE_CHECKING:
    from sotto.algorithms.dppg.config import DPPGConfig


def check(config: "DPPGConfig") -> None:
    """Refuses what cannot run, or cannot be certified.

    Raises:
        ValueError: the first thing that is wrong, in a sentence.
    """
    _check_people(config)
    _check_privacy(config)
    _check_parts(config)
    _check_learning(config)


def _check_privacy(config: "DPPGConfig") -> None:
    if (config.target_epsilon is None) == (config.noise_multiplier is None):
        raise ValueError("give either target_epsilon or noise_multiplier, and not both")
    if config.num_updates >= 1 and config.delta * config.users >= 1:
        raise ValueError(
            f"delta {config.delta:g} is not below 1 / users = {1 / config.users:.3g}, so it would "
            "allow one user's data to be published outright; choose a smaller delta"
        )
    if config.unit == "segment" and config.one_episode:
        raise ValueError("segments continue from one another; one_episode goes with trajectories")


def _check_people(config: "DPPGConfig") -> None:
    """Who takes part, how often."""
    returning, drawn = config.participations > 1, config.population_size is not None
    if config.min_separation is not None and not returning:
        raise ValueError("min_separation is for users who come back; set participations too")
    if config.unit == "segment" and (returning or drawn):
        raise ValueError("segments go from release to release; users who return are trajectories")
    if not drawn:
        return
    if returning:
        raise ValueError("users come back in a public order or are drawn; give one of the two")
    if config.users_per_update >= (config.population_size or 0):
        raise ValueError("population_size must be larger than users_per_update")
    if config.correlated_noise:
        raise ValueError(
            "noise that is correlated over time has no accountant for users who are drawn in "
            "secret; turn correlated_noise off, or leave population_size out"
        )
    if config.adjacency is not Adjacency.ZERO_OUT:
        raise ValueError("users who are drawn are accounted for under zero-out adjacency only")


def _check_parts(config: "DPPGConfig") -> None:
    """What is released beside the policy."""
    if config.joint_clip and len(config.noise_ratios) > 2:
        raise ValueError("joint_clip is for policy and critic; other parts are clipped separately")
    if config.adaptive_clip is not None:
        if config.clip_norm_from is not None:
            raise ValueError("adaptive_clip starts from clip_norm; leave clip_norm_from out")
        if config.local_update == "adam":
            raise ValueError(
                "adaptive_clip follows the norms of updates, which local Adam keeps within the "
                "clip norm; use local_update one-step"
            )
    if config.observation_statistics and config.unit == "segment":
        raise ValueError("observation_statistics goes with users who start from a reset")
    if config.private_return is not None:
        low, high = config.private_return
        if not low < high:
            raise ValueError("private_return is a range: its lower end, then its upper end")
    elif config.stop_at_return is not None:
        raise ValueError("stop_at_return reads released returns; give private_return their range")


def _check_learning(config: "DPPGConfig") -> None:
    if config.num_updates < 1:
        raise ValueError(
            f"total_steps {config.total_steps} is less than one update of users_per_update * "
            f"steps_per_user * action_repeat = {config.steps_per_update} steps"
        )
    if config.steps_per_user % config.local_minibatches:
        raise ValueError("local_minibatches must divide steps_per_user")
    if config.joint_clip and config.critic != "private":
        raise ValueError("joint_clip clips the policy with a private critic; set critic to private")
    if config.local_update == "visit-average" and config.hidden:
        raise ValueError("visit-average is for a linear policy; set hidden to ()")
    if config.local_update == "parameter-exploration":
        _check_exploration(config)


def _check_exploration(config: "DPPGConfig") -> None:
    if config.parameter_noise == 0:
        raise ValueError("parameter-exploration needs parameter_noise, how far users explore")
    if config.steps_per_user % 2:
        raise ValueError(
            "a user who explores plays two episodes of steps_per_user / 2 each; make it even"
        )
    others = config.critic != "none" or len(config.noise_ratios) > 1
    if others or config.unit != "trajectory":
        raise ValueError(
            "parameter-exploration releases nothing but what two episodes say of the policy; it "
            "goes with critic none, unit trajectory, and no further parts of a release"
        )
