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
    write(found, tmp_path / "policy.npz", found.header)
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
    ],
)
def test_others_are_refused(found, says):
    with pytest.raises(ValueError, match=says):
        as_policy(found, policy(Discrete(4), (), 0), "policy.npz")


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "policy.npz"
    with pytest.raises(ValueError, match=r"policy.npz is not a policy .*: there is no such file"):
        read(file)
    file.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is not a policy"):
        read(file)
    np.savez(file, header=np.array(json.dumps({"format": "other"})))
    with pytest.raises(ValueError, match="its format is 'other'"):
        read(file)
    np.savez(file, header=np.array({"format": 1}, dtype=object))
    with pytest.raises(ValueError, match="is not a policy"):
        read(file)
