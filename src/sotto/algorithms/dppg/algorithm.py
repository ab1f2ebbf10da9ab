"""Algorithm `dppg` of `sotto train`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from sotto.algorithms.base import Algorithm, Progress
from sotto.algorithms.dppg import gymnasium_users, noise, training
from sotto.algorithms.dppg import release as dppg
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import USUAL_EPSILON, PresetName, before_changes
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.release import Release
from sotto.privacy.units import PopulationKind
from sotto.rl.envs.registry import is_native
from sotto.rl.rollout import Actor
from sotto.trees import at


class DPPG(Algorithm[DPPGConfig]):
    """Trains an agent with DPPG, the private policy gradient of Rio et al. 2025. The update of
    every user is clipped, averaged with those of other users, and noised before it is used.

    The noise is calibrated to --target-epsilon, or set by --noise-multiplier. CartPole-v1 takes
    about half a minute, and --seeds 10 takes a few minutes.

    Examples:
        sotto train dppg --env-id CartPole-v1 --target-epsilon 1.3 --delta 1e-5 --out runs/x
        sotto train dppg --env-id Acrobot-v1 --target-epsilon 0.1 --seeds 10 --out runs/acrobot
        sotto train dppg --env-id HalfCheetah-v5 --target-epsilon 10 --out runs/cheetah
        sotto train dppg --preset paper --noise-multiplier 1 --out runs/paper
        sotto train dppg --out runs/x --resume
    """

    name, summary = "dppg", "private policy gradient, with a certificate"
    config_type = DPPGConfig
    default_policy = "ema"
    presets = ("sotto", "paper")
    teaches = True
    charged = True

    def defaults(self, flags: Mapping[str, str]) -> dict[str, Any]:
        """Returns the preset that the flags ask for. It may depend on the target epsilon."""
        name, target = flags.get("preset", self.presets[0]), flags.get("target_epsilon")
        if name not in self.presets:
            raise ValueError(f"there is no preset {name!r}; use {' or '.join(self.presets)}")
        changes, epsilon = {}, USUAL_EPSILON
        if "noise_multiplier" in flags and not target:
            changes["noise_multiplier"] = 1.0  # stands for the flag, which replaces the target
        elif target is not None:
            epsilon = _positive(target) or epsilon
        env_id = flags.get("env_id", "CartPole-v1")
        return vars(before_changes(cast(PresetName, name), env_id, epsilon, changes, flags))

    def resolved(self, config: DPPGConfig) -> DPPGConfig:
        """Returns the settings with the population, if they fit environment and first policy."""
        env = training.training_environment(config)
        config = replace(config, population=gymnasium_users.people(config, env))
        if config.first_policy is not None:
            training.initial_states(config, [config.seed])  # reads the file
        return config

    def notes(self, config: DPPGConfig) -> tuple[str, ...]:
        """Returns a warning if the noise hides whatever all users together contribute."""
        return noise.without_hope(config)

    def population(self, config: DPPGConfig) -> PopulationKind:
        """Returns whether users are simulated or real.

        Raises:
            ValueError: neither the settings nor the environment say it.
        """
        if config.population is not None:
            return config.population
        return gymnasium_users.people(config, training.training_environment(config))

    def check_numbered(self, config: DPPGConfig) -> None:
        """Refuses a shared budget if the environment does not know whom it meets.

        Raises:
            ValueError: it does not.
        """
        env = training.training_environment(config)
        gymnasium_users.require_numbered(config, env, "a shared budget")

    def on_devices(self, config: DPPGConfig, horizon: int) -> tuple[Release, Any]:
        """Returns the release of one update, and a trajectory where users are not simulated.

        Args:
            config: settings, with independent noise.
            horizon: number of releases.

        Returns:
            The release, and a trajectory of the right shapes; () where users are simulated in JAX.

        Raises:
            ValueError: there is a first policy, whose file devices do not have.
        """
        if config.first_policy is not None:
            raise ValueError("devices and audits begin with random weights; leave first_policy out")
        env, native = training.training_environment(config), is_native(config.env_id)
        first = self.one_state(config, config.seed)
        multiplier = noise.total_noise_multiplier(config, dppg.dimension(config, env, first))
        multipliers = noise.part_multipliers(config, multiplier)
        clip_norm = training.chosen_clip_norm(config, env, first.policy, multipliers["policy"])
        release = dppg.make_release(
            config,
            env,
            multipliers=multipliers,
            clip_norm=clip_norm,
            horizon=horizon,
            collected=not native,
        )
        if native:
            return release, ()
        collected = gymnasium_users.nothing_collected(config, env, first.policy)
        # Their owners' data come from the devices themselves, and this environment meets nobody.
        release = replace(release, assumptions=())
        return release, at(collected, 0)

    def has_tasks(self, config: DPPGConfig) -> bool:
        """Returns whether users are simulated through Gymnasium.

        Ray may write what tasks return to the disks of the nodes, so real people are not met there.
        """
        return not is_native(config.env_id) and config.population != "real"

    def create_ledger(self, config: DPPGConfig, where: Path | str, run_id: str) -> Ledger:
        """Creates the ledger of a new run, with the budget and the unit of these settings."""
        return training.create_ledger(config, where, run_id)

    def initial_states(self, config: DPPGConfig, seeds: Sequence[int]) -> PyTree:
        """Returns the public state of every run before the first release."""
        return training.initial_states(config, seeds)

    def one_state(self, config: DPPGConfig, seed: int) -> PyTree:
        """Returns one run's state, or arrays of its shapes, for which no file is read."""
        return super().one_state(replace(config, first_policy=None), seed)

    def train(
        self,
        config: DPPGConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Makes the remaining releases."""
        del folders
        yield from training.DPPGTraining(config, seeds, ledgers, states, done)

    def policies(self, states: PyTree) -> dict[str, Actor]:
        """Returns the last policy, the moving average, and the average over the last releases."""
        return training.policies(states)

    def evaluate(
        self, config: DPPGConfig, policy: Any, key: PRNGKeyArray, episodes: int, greedy: bool
    ) -> Float[np.ndarray, "runs episodes"]:
        """Returns the returns of simulated people, and refuses where real people are met."""
        return training.evaluate_policy(config, policy, key, episodes, greedy=greedy)


def _positive(text: str) -> float | None:
    """Returns a positive number, or None for a text that the parser will refuse."""
    try:
        return found if 0 < (found := float(text)) < math.inf else None
    except ValueError:
        return None
