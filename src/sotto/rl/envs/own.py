"""Environments in JAX that users bring: `--env-id MODULE:CLASS`, such as `corridor:Corridor`.

The class derives from `sotto.Environment`, and its name has no version, unlike a name of Gymnasium
(`corridor:Corridor-v0`). So the kind of an environment is known before its module is imported.

Importing the module runs its code, as `sotto.rl.envs.gymnasium.specs` says of Gymnasium's. The
functions of the class are traced here with shapes alone, and refused in one sentence where a
training could not use them. What people's data pass through is checked once more by the door
(`sotto.privacy.release.purity`), whose programs are the ones that run.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sotto import modules
from sotto.errors import EnvironmentFailed, failures_of, said_by
from sotto.rl.envs.base import AnyEnvironment, Box, Discrete, Environment

_DECORATED = (
    "write @dataclass(frozen=True, kw_only=True) above the class, and each fact as in "
    "reset_size: int = 1"
)


def is_own(env_id: str) -> bool:
    """Returns whether this is a name of a class, so that it can only be an environment in JAX."""
    module, colon, name = env_id.partition("+")[0].rpartition(":")
    return bool(module and colon) and name.isidentifier()


def own(env_id: str) -> AnyEnvironment:
    """Returns the environment of a name for which `is_own` holds. Its module is imported.

    Raises:
        ValueError: there is no such class, or a training could not use it.
        EnvironmentFailed: its code raised an exception.
    """
    if "+" in env_id:
        raise ValueError(
            f"{env_id} adds a wrapper of Gymnasium to an environment in JAX; leave it out, and "
            "change the class instead"
        )
    module, _, name = env_id.partition(":")
    if not all(word.isidentifier() for word in module.split(".")):
        raise ValueError(f"{env_id!r} is not a name of an environment; write MODULE:CLASS")
    try:
        with failures_of(f"the module {module}"):
            found = getattr(modules.imported(module), name, None)
    except EnvironmentFailed as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise ValueError(
                f"{env_id} names the module {module}, which cannot be imported: {error.__cause__}"
            ) from error
        raise
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise ValueError(
            f"{module} has no class {name} that derives from sotto.Environment; an environment of "
            f"Gymnasium has a version in its name, such as {module}:{name}-v0"
        )
    return _checked(found, env_id)


def programs(env: AnyEnvironment) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Returns `reset`, `step` and `observe` with the default physics, and shapes of arguments."""
    params = env.default_params
    uniforms = jax.ShapeDtypeStruct((env.reset_size,), jnp.float32)
    state = jax.eval_shape(lambda drawn: env.reset(drawn, params), uniforms)
    discrete = isinstance(env.action, Discrete)
    shape = () if isinstance(env.action, Discrete) else env.action.shape
    action = jax.ShapeDtypeStruct(shape, jnp.int32 if discrete else jnp.float32)
    return {
        "reset": (lambda drawn: env.reset(drawn, params), (uniforms,)),
        "step": (lambda now, chosen: env.step(now, chosen, params), (state, action)),
        "observe": (lambda now: env.observe(now, params), (state,)),
    }


@functools.lru_cache(16)
def _checked(kind: Any, env_id: str) -> AnyEnvironment:
    """Makes the environment, and refuses one that a training could not use."""
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise ValueError(f"{env_id} has no {' and no '.join(missing)}; write reset, step, observe")
    needed = [
        one.name
        for one in inspect.signature(kind).parameters.values()
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    if needed:
        raise ValueError(f"{env_id} gives no {' and no '.join(needed)}; {_DECORATED}")
    with failures_of(env_id):
        env: AnyEnvironment = replace(kind(), id=env_id)
    _require_facts(env)
    try:
        checked = programs(env)
    except Exception as error:
        raise _untraceable(env_id, "reset", error) from error
    before = dict(vars(env))
    shapes = {name: _traced(env_id, name, *one) for name, one in checked.items()}
    if any(before.get(name) is not value for name, value in vars(env).items()):
        raise ValueError(f"{env_id} changes itself; keep in the state what changes")
    _require_shapes(env, shapes)
    return env


def _require_facts(env: AnyEnvironment) -> None:
    counts = {
        "observation_size": (env.observation_size, 1),
        "max_episode_steps": (env.max_episode_steps, 1),
        "reset_size": (env.reset_size, 0),
    }
    for name, (count, least) in counts.items():
        if type(count) is not int or count < least:
            raise ValueError(f"{env.id} gives {name} = {count!r}; give a whole number from {least}")
    _require_actions(env)
    for name in ("observation_scale", "observation_centre"):
        values = getattr(env, name)
        if values is not None and len(values) != env.observation_size:
            raise ValueError(
                f"{env.id} gives {name} {len(values)} numbers, and observation_size is "
                f"{env.observation_size}; give one for each number of an observation"
            )
    if not all(isinstance(one, int | float) for one in jax.tree.leaves(env.default_params)):
        raise ValueError(f"{env.id} has other things than numbers in default_params; give numbers")
    try:
        hash(env)
    except TypeError as error:
        raise ValueError(
            f"{env.id} has a fact that can be changed ({error}); {_DECORATED}, with "
            "numbers and tuples"
        ) from error


def _require_actions(env: AnyEnvironment) -> None:
    action: Any = env.action
    match action:
        case Discrete(n=n):
            valid = type(n) is int and n >= 1
        case Box(low=low, high=high):
            valid = 0 < len(low) == len(high) and all(
                a < b for a, b in zip(low, high, strict=True) if not math.isinf(a) or a != b
            )
        case _:
            valid = False
    if not valid:
        raise ValueError(
            f"{env.id} gives action = {env.action!r}; give sotto.Discrete(n), or sotto.Box(low, "
            "high) with two tuples of numbers, where each low is below its high"
        )


def _traced(env_id: str, name: str, function: Callable[..., Any], shapes: tuple[Any, ...]) -> Any:
    """Traces a function twice, refuses what a training could not use, and returns its shapes."""
    try:
        (closed, found), (again, _) = (
            jax.make_jaxpr(lambda *given: function(*given), return_shape=True)(*shapes)
            for _ in range(2)
        )
    except Exception as error:
        raise _untraceable(env_id, name, error) from error
    if closed.effects:
        raise ValueError(
            f"{name} of {env_id} has a side effect ({', '.join(map(str, closed.effects))}); leave "
            "callbacks and prints of JAX out"
        )
    if arrays := [
        np.shape(one) for one in closed.consts if isinstance(one, jax.Array) or np.ndim(one)
    ]:
        raise ValueError(
            f"{name} of {env_id} holds an array of shape {arrays[0]} of its own; write its "
            "numbers one by one, as in jnp.stack([0.1, 0.2]), or compute them"
        )
    # Addresses of functions in the text differ.
    if len({re.sub("0x[0-9a-f]+", "", str(one)) for one in (closed, again)}) > 1:
        raise ValueError(
            f"{name} of {env_id} is another program each time that it is traced; take random "
            "numbers from the uniforms of reset, and keep what changes in the state"
        )
    return found


def _untraceable(env_id: str, name: str, error: Exception) -> EnvironmentFailed:
    compiled = isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError)
    return EnvironmentFailed(
        f"{name} of {env_id} raised {said_by(error)}"
        + ("; use jnp.where and jax.lax, not if, while, float() or numpy" if compiled else "")
    )


def _require_shapes(env: AnyEnvironment, shapes: dict[str, Any]) -> None:
    """Refuses results of other shapes and types than `Environment` says."""
    stepped = shapes["step"]
    if not isinstance(stepped, tuple) or len(stepped) != 3:
        raise ValueError(
            f"step of {env.id} must return the next state, the reward and whether the episode "
            "terminated; the time limit is max_episode_steps"
        )
    after, reward, terminated = stepped
    before = shapes["reset"]
    old, new = (str(jax.tree.structure(one)) for one in (before, after))
    if old != new:
        raise ValueError(
            f"step of {env.id} returns a state of the structure {new}, and reset one of {old}; "
            "return the same from both"
        )
    leaves = jax.tree_util.tree_leaves_with_path(before)
    for (place, first), second in zip(leaves, jax.tree.leaves(after), strict=True):
        what = f"step's state{jax.tree_util.keystr(place)}"
        _require(env.id, what, second, first.shape, first.dtype)
    _require(env.id, "step's reward", reward, (), np.dtype(np.float32))
    _require(env.id, "step's terminated", terminated, (), np.dtype(bool))
    seen = (env.observation_size,)
    _require(env.id, "observe's observation", shapes["observe"], seen, np.dtype(np.float32))


def _require(env_id: str, what: str, found: Any, shape: tuple[int, ...], kind: Any) -> None:
    if not hasattr(found, "dtype"):
        raise ValueError(f"{what} of {env_id} is a {type(found).__name__}; return one array")
    if found.shape != shape or found.dtype != kind:
        raise ValueError(
            f"{what} of {env_id} has shape {found.shape} and type {found.dtype}; it must have "
            f"shape {shape} and type {kind}"
        )
