"""Policies in files: what is read acts as what was written, in other units too."""

import json

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from sotto.rl.envs.base import Box, Discrete
from sotto.rl.networks import Policy
from sotto.rl.policy_files import Flat, as_policy, read, write
from sotto.runs.agents.export import flat

BOX = Box((-2.0, 0.0), (2.0, 8.0), centre=(0.0, 4.0), scale=(1.0, 2.0))


def policy(action, hidden, seed, **constants):
    return Policy(3, action, hidden, jr.key(seed), last_gain=1.0, **constants)


@pytest.mark.parametrize("hidden", [(), (5,), (4, 6)])
@pytest.mark.parametrize("action", [Discrete(4), BOX], ids=["discrete", "box"])
def test_it_acts_the_same_with_other_constants(action, hidden, tmp_path):
    written = policy(
        action,
        hidden,
        0,
        observation_scale=(2.0, 0.1, 1.0),
        observation_centre=(1.0, -2.0, 0.5),
        initial_log_std=-0.7,
    )
    found = flat(written)
    write(found, tmp_path / "policy.npz", {})
    like = policy(action, hidden, 1, observation_scale=(0.5, 3.0, 1.0))
    got = as_policy(read(tmp_path / "policy.npz"), like, "policy.npz")
    assert jax.tree.structure(got) == jax.tree.structure(like)
    assert [x.dtype for x in jax.tree.leaves(got)] == [jnp.float32] * len(jax.tree.leaves(like))
    seen = jr.normal(jr.key(2), (20, 3))
    ours, theirs = got(seen), written(seen)
    for name in ("logits",) if action is not BOX else ("mean", "log_std"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-5)


def _flat(**changes):
    values = {
        "centre": np.zeros(3),
        "scale": np.ones(3),
        "weights": (np.ones((3, 4)),),
        "biases": (np.zeros(4),),
        "log_std": None,
        "outputs": "logits",
    }
    return Flat(**(values | changes))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (_flat(outputs="values"), "has values as outputs, and training needs logits"),
        (_flat(log_std=np.zeros(4), outputs="mean"), "has mean as outputs"),
        (_flat(weights=(np.ones((3, 2)),), biases=(np.zeros(2),)), r"\[3, 2\] .* \[3, 4\]"),
        (_flat(centre=np.zeros(2), scale=np.ones(2)), r"layers of \[2, 4\]"),
        (_flat(weights=(np.full((3, 4), np.nan),)), "not finite"),
        (_flat(biases=(np.array([0, 0, 0, np.inf]),)), "not finite"),
        (_flat(weights=(np.full((3, 4), 1e30),), scale=np.full(3, 1e30)), "not finite"),
    ],
)
def test_others_are_refused(found, says):
    with pytest.raises(ValueError, match=says):
        as_policy(found, policy(Discrete(4), (), 0), "policy.npz")


def test_the_spread_of_actions_fits_too():
    like = policy(BOX, (), 0)
    common = {"weights": (np.ones((3, 2)),), "biases": (np.zeros(2),), "outputs": "mean"}
    as_policy(_flat(**common, log_std=np.zeros(2)), like, "policy.npz")
    with pytest.raises(ValueError, match="log_std to match"):
        as_policy(_flat(**common, log_std=np.zeros(1)), like, "policy.npz")
    with pytest.raises(ValueError, match="not finite"):
        as_policy(_flat(**common, log_std=np.array([0.0, 1e30])), like, "policy.npz")


ZERO, ONE = np.zeros(3), np.ones((3, 4))
GOOD = {"centre": ZERO, "scale": ZERO + 1, "weights_0": ONE, "biases_0": np.zeros(4)}
HEADER = _flat().header


def _stored(file, header, **arrays):
    np.savez(file, header=np.array(header), **arrays)
    return file


def test_a_good_file_is_read(tmp_path):
    file = _stored(tmp_path / "policy.npz", json.dumps(HEADER), **GOOD)
    np.testing.assert_array_equal(read(file).weights[0], ONE)


@pytest.mark.parametrize(
    ("header", "arrays", "says"),
    [
        ("{", {}, "no header of the format 'sotto policy 1'"),
        ("[" * 100_000, {}, "no header"),
        ("[1]", {}, "no header"),
        ({"format": "other"}, {}, "no header"),
        ({"layers": 1.0}, {}, "number of layers"),
        ({"layers": -1}, {}, "number of layers"),
        ({"layers": 10**9}, {}, "number of layers"),
        ({"layers": 2}, {}, "it has no biases_1"),
        ({"activation": "relu"}, {}, "not tanh"),
        ({"actions": "box"}, {}, "different kinds of actions"),
        ({"outputs": "mean"}, {}, "different kinds of actions"),
        ({"outputs": ["logits"]}, {}, "different kinds of actions"),
        ({}, {"log_std": np.zeros(4)}, "different kinds of actions"),
        ({}, {"biases_0": np.float64(0)}, "biases_0 has not 1 dimensions"),
        ({}, {"weights_0": np.ones(4)}, "weights_0 has not 2 dimensions"),
        ({}, {"weights_0": ONE.astype(complex)}, "weights_0 has not 2"),
        ({}, {"scale": np.array(["1", "1", "1"])}, "scale has not 1"),
    ],
)
def test_a_wrong_header_or_array_is_refused(header, arrays, says, tmp_path):
    words = header if isinstance(header, str) else json.dumps(HEADER | header)
    file = _stored(tmp_path / "policy.npz", words, **GOOD | arrays)
    with pytest.raises(ValueError, match=rf"policy.npz is not a policy: .*{says}"):
        read(file)


def test_others_than_archives_are_refused(tmp_path):
    file = tmp_path / "policy.npz"
    for one in (file, tmp_path):
        with pytest.raises(ValueError, match="is not a policy: there is no such file"):
            read(one)
    for content in (b"", b"no archive", b"PK\x03\x04" + bytes(60)):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"is not an \.npz archive of numbers$"):
            read(file)
    np.savez(file, header=np.array([{"format": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"is not an \.npz archive of numbers$"):
        read(file)
    with file.open("wb") as opened:
        np.save(opened, np.ones(3))
    with pytest.raises(ValueError, match=r"is not an \.npz archive of numbers$"):
        read(file)
