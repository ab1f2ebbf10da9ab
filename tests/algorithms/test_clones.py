"""A clone depends on the log of its expert only, and acts as its expert did."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from padded_logs import of_padded, without

from sotto.algorithms.expert_offline.clones import CloneConfig, fit_clones
from sotto.data.trajectories import ExpertLog
from sotto.rl.networks import Policy

CONFIG = CloneConfig(hidden=(8,), steps=200, minibatch=32, chunk=3)
SCALE = (1.0, 1.0)
KEY = jax.random.key(0)


def make_arrays(
    experts: int = 7, episodes: int = 4, cap: int = 20, seed: int = 0
) -> dict[str, np.ndarray]:
    """Each expert has a direction, and takes three actions in three sectors of the plane."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(experts, episodes, cap + 1, 2)).astype(np.float32)
    actions = expert_actions(observations[:, :, :cap])
    return {
        "observations": observations,
        "actions": actions,
        "rewards": np.zeros(actions.shape, np.float32),
        "lengths": rng.integers(cap // 2, cap + 1, (experts, episodes)),
        "terminated": np.zeros((experts, episodes), bool),
    }


def make_log(**sizes: int) -> ExpertLog:
    return of_padded(**make_arrays(**sizes))


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
    arrays = make_arrays()
    arrays["observations"] = 5 + arrays["observations"] / 20
    log = of_padded(**arrays)
    clones = fit(log)
    agreed = []
    for expert in range(log.experts):
        own, clone = log.of(expert).transitions, jax.tree.map(lambda x, e=expert: x[e], clones)
        agreed.append(np.asarray(clone(own.observations).mode()) == own.actions)
    # By public scales alone it is that of guessing one sector.
    assert np.mean(np.concatenate(agreed)) > 0.85


@pytest.mark.parametrize("change", ["other actions", "nothing", "not finite", "wild actions"])
def test_one_expert_moves_their_own_clone_and_no_other(change: str) -> None:
    """The other clones are the same, bit for bit, with any log of one expert."""
    arrays = make_arrays()
    if change == "other actions":
        arrays["actions"][4] = 2 - arrays["actions"][4]
    elif change == "nothing":
        arrays["lengths"][4] = 0
    elif change == "not finite":
        arrays["observations"][4] = np.inf
    else:
        arrays["actions"][4] = 1_000_000
    for one, two in zip(leaves(fit(make_log())), leaves(fit(of_padded(**arrays))), strict=True):
        np.testing.assert_array_equal(np.delete(one, 4, 0), np.delete(two, 4, 0))
        assert not np.array_equal(one[4], two[4])


def longer(arrays: dict[str, np.ndarray], expert: int, episodes: int, cap: int) -> ExpertLog:
    """Returns a log in which one expert has more and longer episodes, and others have theirs."""
    old_episodes, old_cap = arrays["actions"].shape[1:]
    room = ((0, 0), (0, episodes - old_episodes))
    steps = (0, cap - old_cap)
    wide = {
        "observations": np.pad(arrays["observations"], (*room, steps, (0, 0))),
        "actions": np.pad(arrays["actions"], (*room, steps)),
        "rewards": np.pad(arrays["rewards"], (*room, steps)),
        "lengths": np.pad(arrays["lengths"], room),
        "terminated": np.pad(arrays["terminated"], room),
    }
    wide["lengths"][expert] = cap
    return of_padded(**wide)


@pytest.mark.parametrize(("episodes", "cap"), [(4, 33), (4, 257), (9, 20), (11, 600)])
def test_how_much_one_expert_played_moves_no_other_clone(episodes: int, cap: int) -> None:
    """The other clones are the same, bit for bit, when one expert's episodes are longer."""
    arrays = make_arrays()
    # With a large offset and a small spread, the rounding of a mean is as large as the spread.
    arrays["observations"][..., 0] = 1e5 + arrays["observations"][..., 0] / 50
    log, other = of_padded(**arrays), longer(arrays, 4, episodes, cap)
    for one, two in zip(leaves(fit(log)), leaves(fit(other)), strict=True):
        np.testing.assert_array_equal(np.delete(one, 4, 0), np.delete(two, 4, 0))
        assert not np.array_equal(one[4], two[4])


@pytest.mark.filterwarnings("error")
def test_what_is_too_large_warns_of_nothing() -> None:
    log = make_log()
    log.of(4).transitions.observations[:] = 3e38
    fit_clones(CONFIG, log, 3, (10.0, 1.0), KEY)


def test_an_expert_without_a_log_gets_an_untrained_clone() -> None:
    log, again = without(make_log(), 2), without(make_log(seed=5), 2)
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
    log = make_log()
    few = log.transitions._replace(rewards=np.zeros(7, np.float32))
    with pytest.raises(ValueError, match="rewards of a log of experts"):
        fit(log._replace(transitions=few))
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        CloneConfig(chunk=0)
    with pytest.raises(ValueError, match="learning_rate must be in"):
        CloneConfig(learning_rate=-1.0)
