"""A clone depends on the log of its expert only, and acts as its expert did."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.expert_offline.clones import CloneConfig, fit_clones
from sotto.data.trajectories import ExpertLog
from sotto.rl.networks import Policy

CONFIG = CloneConfig(hidden=(8,), steps=200, minibatch=32, chunk=3)
SCALE = (1.0, 1.0)
KEY = jax.random.key(0)


def make_log(experts: int = 7, episodes: int = 4, cap: int = 20, seed: int = 0) -> ExpertLog:
    """Each expert has a direction, and takes three actions in three sectors of the plane."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(experts, episodes, cap + 1, 2)).astype(np.float32)
    actions = expert_actions(observations[:, :, :cap])
    lengths = rng.integers(cap // 2, cap + 1, (experts, episodes)).astype(np.int32)
    padding = np.arange(cap) >= lengths[..., None]
    # A clone must not learn the padding.
    actions[padding] = (actions[padding] + 1) % 3
    return ExpertLog(
        observations,
        actions,
        np.zeros(actions.shape, np.float32),
        lengths,
        np.zeros(lengths.shape, bool),
    )


def expert_actions(observations: np.ndarray) -> np.ndarray:
    """Returns each expert's actions at observations with a leading axis of experts."""
    shape = (len(observations),) + (1,) * (observations.ndim - 2)
    turn = np.arange(len(observations)).reshape(shape)
    angle = np.arctan2(observations[..., 1], observations[..., 0]) + turn
    return (np.floor(angle / (2 * np.pi / 3)) % 3).astype(np.int32)


def leaves(clones: Policy) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(clones)]


def fit(log: ExpertLog, config: CloneConfig = CONFIG) -> Policy:
    return fit_clones(config, log, 3, SCALE, KEY)


def test_clones_do_what_their_own_expert_did() -> None:
    log = make_log(episodes=20)
    clones = fit(log, CloneConfig(hidden=(16,), steps=600, minibatch=64, chunk=7))
    fresh = np.random.default_rng(1).normal(size=(7, 500, 2)).astype(np.float32)
    acted = np.asarray(jax.vmap(lambda c, o: c(o).mode())(clones, jnp.asarray(fresh)))
    agreement = (acted == expert_actions(fresh)).mean(axis=1)
    assert agreement.shape == (7,)
    assert agreement.min() > 0.85
    # The neighbour's actions are turned by a radian: half of them are others.
    assert (acted[1:] == expert_actions(fresh)[:-1]).mean() < 0.75


def test_what_differs_little_from_step_to_step_is_learnt_as_well() -> None:
    log = make_log()
    near = log._replace(observations=5 + log.observations / 20)
    clones = fit(near)
    seen = near.observations[:, :, :-1]
    said = jax.vmap(lambda clone, rows: clone(rows).mode())(clones, jnp.asarray(seen))
    lived = np.arange(seen.shape[2]) < log.lengths[..., None]
    agreement = np.mean((np.asarray(said) == log.actions)[lived])
    assert agreement > 0.85  # by public scales alone it is that of guessing one sector


def test_padding_is_not_learnt() -> None:
    log = make_log()
    other = log.actions.copy()
    padding = np.arange(log.cap) >= log.lengths[..., None]
    other[padding] = 0
    hidden = log.observations.copy()
    hidden[np.arange(log.cap + 1) > log.lengths[..., None]] = np.nan
    for one, two in zip(
        leaves(fit(log)),
        leaves(fit(log._replace(actions=other, observations=hidden))),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("change", ["other actions", "nothing", "not finite", "wild actions"])
def test_one_expert_moves_their_own_clone_and_no_other(change: str) -> None:
    """The other clones are the same, bit for bit, with any log of one expert."""
    log = make_log()
    changed = ExpertLog(*(array.copy() for array in log))
    if change == "other actions":
        changed.actions[4] = 2 - changed.actions[4]
    elif change == "nothing":
        changed.lengths[4] = 0
    elif change == "not finite":
        changed.observations[4] = np.inf
    else:
        changed.actions[4] = 1_000_000
    for one, two in zip(leaves(fit(log)), leaves(fit(changed)), strict=True):
        np.testing.assert_array_equal(np.delete(one, 4, 0), np.delete(two, 4, 0))
        assert not np.array_equal(one[4], two[4])


def longer(log: ExpertLog, expert: int, episodes: int, cap: int) -> ExpertLog:
    """Returns the log with a larger cap, all of which one expert uses."""
    old_episodes, old_cap = log.episodes, log.cap
    room = ((0, 0), (0, episodes - old_episodes))
    steps = (0, cap - old_cap)
    wide = ExpertLog(
        np.pad(log.observations, (*room, steps, (0, 0))),
        np.pad(log.actions, (*room, steps)),
        np.pad(log.rewards, (*room, steps)),
        np.pad(log.lengths, room),
        np.pad(log.terminated, room),
    )
    wide.lengths[expert] = cap
    return wide


@pytest.mark.parametrize(("episodes", "cap"), [(4, 33), (4, 257), (9, 20), (11, 600)])
def test_how_much_one_expert_played_moves_no_other_clone(episodes: int, cap: int) -> None:
    """The other clones are the same, bit for bit, when one expert's episodes are longer."""
    log = make_log()
    # With a large offset and a small spread, the rounding of a mean is as large as the spread.
    log.observations[..., 0] = 1e5 + log.observations[..., 0] / 50
    other = longer(log, 4, episodes, cap)
    for one, two in zip(leaves(fit(log)), leaves(fit(other)), strict=True):
        np.testing.assert_array_equal(np.delete(one, 4, 0), np.delete(two, 4, 0))
        assert not np.array_equal(one[4], two[4])


@pytest.mark.filterwarnings("error")
def test_what_is_too_large_warns_of_nothing() -> None:
    log = make_log()
    log.observations[4] = 3e38
    fit_clones(CONFIG, log, 3, (10.0, 1.0), KEY)


def test_an_expert_without_a_log_gets_an_untrained_clone() -> None:
    log = make_log()
    log.lengths[2] = 0
    again = make_log(seed=5)
    again.lengths[2] = 0
    mine, other = leaves(fit(log)), leaves(fit(again))
    for one, two in zip(mine, other, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one[2], two[2])
        assert not np.array_equal(one[1], two[1])


def test_chunks_change_nothing_but_rounding() -> None:
    log = make_log()
    probe = jnp.asarray(np.random.default_rng(3).normal(size=(400, 2)), jnp.float32)
    acted = []
    for chunk in (3, 100):
        config = CloneConfig(hidden=(8,), steps=200, minibatch=32, chunk=chunk)
        acted.append(np.asarray(jax.vmap(lambda c: c(probe).mode())(fit(log, config))))
        assert acted[-1].shape == (7, 400)
    assert np.mean(acted[0] == acted[1]) > 0.98


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="3 factors, but observations have 2"):
        fit_clones(CONFIG, make_log(), 3, (1.0, 1.0, 1.0), KEY)
    with pytest.raises(ValueError, match="rewards of a log of experts"):
        fit(make_log()._replace(rewards=np.zeros((7, 4), np.float32)))
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        CloneConfig(chunk=0)
    with pytest.raises(ValueError, match="learning_rate must be in"):
        CloneConfig(learning_rate=-1.0)
