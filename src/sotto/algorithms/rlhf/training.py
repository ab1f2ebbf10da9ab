"""Training of private RLHF: the noisy releases, and then post-processing that costs no privacy."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from sotto.algorithms.base import Progress
from sotto.algorithms.rlhf import critic, evaluation, improvement
from sotto.algorithms.rlhf.answers import TunedModel
from sotto.algorithms.rlhf.config import HUGGING_FACE, SMOLLM2, RLHFConfig, kl_of_choice
from sotto.algorithms.rlhf.directions import first_adapter, public_directions
from sotto.algorithms.rlhf.features import DEPTHS, RewardModel, Whitening, fit_whitening
from sotto.algorithms.rlhf.keys import Use, key_for
from sotto.algorithms.rlhf.people import People
from sotto.algorithms.rlhf.release import (
    Open,
    RLHFState,
    dimension,
    make_release,
    noise_multiplier,
    without_release,
)
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import NothingReleased
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.language import Adapter, save_adapter
from sotto.rl.language.architecture import Architecture
from sotto.trees import at, single

_log = logging.getLogger(__name__)
_SHOWN = 5
"""Number of samples in the report."""


def blank_state(config: RLHFConfig, architecture: Architecture) -> RLHFState:
    """Returns a state with the shapes of every state of a training, without an axis of runs."""
    adapter = first_adapter(config, architecture)
    directions: Any = ()
    if config.directions and not config.improves:
        size = ravel_pytree(adapter)[0].size
        directions = jnp.zeros((config.directions, size), jnp.float32)
    raw = len(DEPTHS) * architecture.width
    whitening = Whitening(jnp.zeros((raw, config.features), jnp.float32))
    weights = jnp.zeros(config.features, jnp.float32)
    return RLHFState(
        adapter,
        adapter,
        weights,
        critic.blank(architecture.width) if config.critic == "paper" else (),
        directions,
        whitening,
        jnp.zeros((), jnp.int32),
    )


def initial_state(config: RLHFConfig, people: People) -> RLHFState:
    """Returns the public state before the first release, free of data, without an axis of runs."""
    state = blank_state(config, people.language.decoder.architecture)
    if config.improves:
        candidates = improvement.draw_candidates(config, people)
        return state._replace(whitening=fit_whitening(candidates.raw, config.features))
    if not config.directions:
        return state
    key = key_for(config.seed, Use.DIRECTIONS)
    return state._replace(directions=public_directions(config, people, state.adapter, key))


def base_name(model: str) -> str | None:
    """Returns the name or folder under which PEFT loads a model; None: it loads no GGUF file."""
    if model == SMOLLM2:
        return HUGGING_FACE
    return model if Path(model).is_dir() else None


_Measured = tuple[dict[str, float], tuple[tuple[str, str], ...]]
"""Means of the measurements by name, and samples: prompts and completions."""


class RLHFTraining:
    """One training, from any state to the end."""

    def __init__(
        self,
        config: RLHFConfig,
        people: People,
        ledger: Ledger,
        states: PyTree,
        done: int,
        folder: Path,
    ) -> None:
        self._config, self._people, self._ledger, self._folder = config, people, ledger, folder
        self._done = done
        self._state: RLHFState = at(states, 0)
        self._before: _Measured = {}, ()

    def run(self) -> Iterator[Progress]:
        """Makes the updates that are left, and yields after each chunk.

        Raises:
            PrivacyError: the budget does not cover the releases, or all of them were charged and
                lost.
        """
        config, done = self._config, self._done
        if done == 0:
            self._before = self._measured(replace(config, reranked=1))
        if done < config.releases:
            yield from self._release(done)
        yield self._finish()

    def _release(self, done: int) -> Iterator[Progress]:
        """Makes the releases that are left, in a new stream with people who have not taken part.

        The number of a person in the ledger is that person's place in the file, or among the
        simulated people. A release that a killed process charged is never made again, since its
        people would pay twice.
        """
        config, people = self._config, self._people
        charged = sum(stream.releases for stream in self._ledger.streams)
        if done == 0 and charged == config.releases:
            raise NothingReleased(
                "every release of this run was charged and then lost, so nothing can be learnt "
                "from its people any more; start a new run, whose epsilon adds to that of this one "
                "if it is about the same people"
            )
        for _ in range(done, charged):
            self._state = without_release(config, self._state)
        multiplier = noise_multiplier(config, dimension(config, self._state))
        release = make_release(config, multiplier)
        public = Open(self._state, people.language.decoder)
        opened = single(public)
        stream = None
        for update in range(charged, config.releases):
            rated = people.rated(config, self._state.adapter, update)
            if stream is None:
                left = replace(release, horizon=config.releases - charged)
                stream = left.open([self._ledger], opened, rated, chunk=1)
            persons = update * release.slots + np.arange(release.slots).reshape(1, 1, -1)
            units = single(single(rated))
            keys = key_for(config.seed, Use.PEOPLE)[None]
            _log.info(
                "computing release %d of %d, which is charged first", update + 1, config.releases
            )
            opened, log, simulated = stream.run(opened, keys, persons, units)
            self._state = at(opened.state, 0)
            ratings = {} if simulated is None else {"rating": simulated["rating"].mean(axis=2)}
            # Before the model is tuned against the released reward model, it is the base model,
            # unless the reward model chooses among answers.
            learned = not config.improves or config.reranked > 1
            yield self._progress(update + 1, log, ratings, learned)

    def _finish(self) -> Progress:
        """Tunes the adapter against a released reward model, if there is one. Scales the adapters
        to the target KL, and writes the last one for other tools.
        """
        config, people, state = self._config, self._people, self._state
        if config.improves:
            candidates = improvement.draw_candidates(config, people)
            rewards = improvement.rewards(candidates, state.whitening, state.weights)
            rest = config.kl_target - kl_of_choice(config.reranked)
            tuned = improvement.tuned(state.adapter, candidates.scores, rewards, rest)
            state = state._replace(adapter=tuned)
        meet = partial(
            improvement.scaled_to_target, config, people, key=key_for(config.seed, Use.KL)
        )
        model, factor = meet(self._model(state.adapter))
        adapter = average = model.adapter
        if not config.improves:
            average = meet(self._model(state.average))[0].adapter
        self._state = state._replace(
            adapter=adapter, average=average, updates=jnp.int32(config.num_updates)
        )
        architecture, folder = people.language.decoder.architecture, self._folder / "adapter"
        folder.mkdir(parents=True, exist_ok=True)
        derive(self._ledger).write(folder / "certificate.json")  # the folder is handed out alone
        save_adapter(adapter, architecture, folder, base_name(config.model))
        return self._progress(config.num_updates, {"scale": np.array([[factor]])})

    def _model(self, adapter: Adapter) -> TunedModel:
        return TunedModel(adapter, RewardModel(self._state.whitening, self._state.weights))

    def _progress(
        self,
        updates: int,
        released: dict[str, Any],
        simulated: dict[str, Any] | None = None,
        learned: bool = True,
    ) -> Progress:
        """Returns the progress. Updates whose release was lost have no values (NaN)."""
        updated, self._done = updates - self._done, updates

        def series(found: dict[str, Any]) -> dict[str, np.ndarray]:
            return {
                name: np.pad(
                    np.asarray(x, np.float64),
                    [(0, 0), (updated - np.shape(x)[1], 0)],
                    constant_values=np.nan,
                )
                for name, x in found.items()
            }

        before, self._before = self._before, ({}, ())
        measured, samples = self._measured(self._config) if learned or not before[0] else before
        return Progress(
            updates,
            single(self._state),
            series(released),
            _of_one_run(measured),
            series(simulated or {}),
            env_steps=min(updates, self._config.releases) * self._config.steps_per_update,
            learned=learned,
            samples=samples,
            before=_of_one_run(before[0]),
            samples_before=before[1],
        )

    def _measured(self, config: RLHFConfig) -> _Measured:
        """Returns measurements of the present model and samples; empty where people are real."""
        if config.population == "real":
            return {}, ()
        found = evaluation.measure(
            config,
            self._people,
            self._model(self._state.adapter),
            key_for(config.seed, Use.EVALUATION),
            config.evaluation_prompts,
        )
        measured = {"last": (means := found.means()).pop("rating"), **means}
        return measured, tuple(zip(found.prompts, found.completions, strict=True))[:_SHOWN]


def _of_one_run(measured: dict[str, float]) -> dict[str, np.ndarray]:
    return {name: np.array([value]) for name, value in measured.items()}
