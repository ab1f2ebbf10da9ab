"""One person's contribution for a place: a trajectory, or an update that the device computed.

Everything from a device is checked here. A contribution is stored with the same number of bytes
whatever it says, so that its size tells nothing. The text of an update has one length, too.
"""

import base64
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from sotto.people.errors import BadContribution
from sotto.rl.envs.base import AnyEnvironment, Discrete
from sotto.rl.networks import Policy
from sotto.rl.rollout import Trajectory

LARGEST = 1e6
"""Largest absolute value of an observation, a reward or an action."""
_FIELDS = {"place", "observations", "actions", "rewards", "terminated"}


def empty_trajectory(env: AnyEnvironment, steps: int) -> Trajectory:
    """Returns a trajectory without a step, leaves of shape [steps, ...]. Empty slots give it."""
    seen: Any = np.zeros((steps, env.observation_size), np.float32)
    flags: Any = np.zeros(steps, bool)
    shape = () if isinstance(env.action, Discrete) else env.action.shape
    actions: Any = np.zeros((steps, *shape), np.int32 if not shape else np.float32)
    rewards: Any = np.zeros(steps, np.float32)
    return Trajectory(seen, actions, rewards, seen, flags, flags, flags)


def read_trajectory(given: Mapping[str, Any], env: AnyEnvironment, steps: int) -> Trajectory:
    """Returns the trajectory of a request, padded to `steps` steps.

    Args:
        given: JSON object with observations [T + 1, obs], actions [T] or [T, a], rewards [T], and
            whether the last step terminated the episode.
        env: public facts.
        steps: largest T.

    Raises:
        BadContribution: something is missing, has another shape, or is out of range.
    """
    if set(given) - _FIELDS:
        raise BadContribution(f"a trajectory has no field {sorted(set(given) - _FIELDS)[0]!r}")
    padded = empty_trajectory(env, steps)
    rewards = _numbers(given, "rewards", (None,))
    count = len(rewards)
    if not 1 <= count <= steps:
        raise BadContribution(f"a trajectory has 1 to {steps} steps, got {count}")
    seen = _numbers(given, "observations", (count + 1, env.observation_size))
    actions = _numbers(given, "actions", (count, *padded.actions.shape[1:]))
    if isinstance(env.action, Discrete):
        wrong = (actions != np.floor(actions)) | (actions < 0) | (actions >= env.action.n)
        if wrong.any():
            raise BadContribution(f"actions are whole numbers from 0 to {env.action.n - 1}")
    terminated = given.get("terminated")
    if not isinstance(terminated, bool):
        raise BadContribution("terminated must be true or false")
    leaves: list[Any] = [np.array(leaf) for leaf in padded]
    observations, taken, got, following, ends, cut, alive = leaves
    observations[:count], following[:count] = seen[:-1], seen[1:]
    taken[:count], got[:count], alive[:count] = actions, rewards, True
    ends[count - 1], cut[count - 1] = terminated, not terminated
    return Trajectory(*leaves)


def written_update(numbers: Float[np.ndarray, " parameters"]) -> str:
    """Returns an update as text for a request, of one length whatever the numbers are.

    It is the base64 of the numbers as float32, little-endian. Decimal numbers would be shorter
    where a gradient is zero, and so show in the size of a request.
    """
    return base64.b64encode(np.asarray(numbers, "<f4").tobytes()).decode("ascii")


def read_update(given: Mapping[str, Any], policy: Policy) -> Policy:
    """Returns the update of a request, in the form of the policy.

    Args:
        given: JSON object with `update`, from `written_update`: all parameters in the order of
            `jax.tree.leaves`.
        policy: a policy of the right shapes.

    Raises:
        BadContribution: something is missing, has another length, or is out of range.
    """
    if set(given) - {"place", "update"}:
        raise BadContribution("an update has no other field than place and update")
    leaves, structure = jax.tree.flatten(eqx.filter(policy, eqx.is_array))
    size = sum(leaf.size for leaf in leaves)
    try:
        data = base64.b64decode(given.get("update", ""), validate=True)
    except (TypeError, ValueError):
        data = b""
    if len(data) != 4 * size:
        raise BadContribution(f"update must be the base64 text of {size} numbers in float32")
    numbers = _in_range("update", np.frombuffer(data, "<f4")).astype(np.float32)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = np.split(numbers, ends)
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    update: Policy = jax.tree.unflatten(structure, shaped)
    return update


def packed(unit: Any) -> bytes:
    """Returns the numbers of a unit as bytes; all units of a campaign have the same number."""
    return b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree.leaves(unit))


def unpacked(data: bytes, like: Any) -> Any:
    """Returns the unit of `packed`, in the form of `like`.

    Raises:
        ValueError: there are more bytes, or fewer.
    """
    leaves, structure = jax.tree.flatten(like)
    if len(data) != sum(np.asarray(leaf).nbytes for leaf in leaves):
        raise ValueError("the stored contribution has another size")
    found, start = [], 0
    for leaf in map(np.asarray, leaves):
        part = np.frombuffer(data, leaf.dtype, leaf.size, start)
        found.append(part.reshape(leaf.shape))
        start += leaf.nbytes
    return jax.tree.unflatten(structure, found)


def _numbers(given: Mapping[str, Any], name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Returns an array of finite numbers of a shape, in which None stands for any length."""
    try:
        found = np.asarray(given[name])
    except KeyError:
        raise BadContribution(f"{name} is missing") from None
    except ValueError:  # rows of different lengths
        raise BadContribution(f"{name} must be a regular array of numbers") from None
    wanted = "x".join("T" if size is None else str(size) for size in shape)
    fits = found.ndim == len(shape) and all(
        size in (None, had) for size, had in zip(shape, found.shape, strict=True)
    )
    if not fits or found.dtype.kind not in "iuf":
        raise BadContribution(f"{name} must be numbers of shape {wanted}")
    return _in_range(name, found.astype(np.float64))


def _in_range(name: str, found: np.ndarray) -> np.ndarray:
    if not (np.abs(found) <= LARGEST).all():  # false for NaN, too
        raise BadContribution(f"numbers of {name} must be between -1e6 and 1e6")
    return found
