"""Environments written in JAX, by Gymnasium's name."""

import difflib

from sotto.rl.envs.acrobot import Acrobot
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.cartpole import CartPole
from sotto.rl.envs.centred_cartpole import CentredCartPole
from sotto.rl.envs.dosing import Dosing
from sotto.rl.envs.hiv import HIV
from sotto.rl.envs.line import Line
from sotto.rl.envs.river_swim import RiverSwim, RiverSwimParams
from sotto.rl.envs.wrappers import ActionRepeat

_NATIVE: dict[str, AnyEnvironment] = {
    env.id: env
    for env in (
        *(CartPole(), Acrobot(), Line(), CentredCartPole(), HIV()),
        *(Dosing(), Dosing.with_random_meals()),
        *(RiverSwim(), RiverSwim(id="RiverSwim90-v0", default_params=RiverSwimParams(stay=0.9))),
    )
}


def is_native(env_id: str) -> bool:
    """Whether `make` knows this environment; others go through the Gymnasium bridge."""
    return env_id in _NATIVE


def from_data(env_id: str, source: object, named: str | None = None) -> str:
    """The name of an environment that data give, unless making it would run what they name.

    The modules in a name like "module:Name-v0+module:Wrapper" are imported; so only a user may give
    one.

    Args:
        env_id: the name.
        source: where it was found.
        named: what the user gave as --env-id.

    Raises:
        ValueError: it names a module, and the user did not.
    """
    modules = [one.rpartition(":")[0] for one in env_id.split("+") if ":" in one]
    if modules and env_id != named:
        raise ValueError(
            f"{source} names the environment {env_id!r}, and making that would import "
            f"{modules[0]!r} and run what is in it; give --env-id {env_id} if you "
            "trust it"
        )
    return env_id


def make(env_id: str, action_repeat: int = 1) -> AnyEnvironment:
    """The environment of this name, each action applied `action_repeat` times.

    Raises:
        ValueError: an unknown name, or a repeat that does not divide the time limit.
    """
    if env_id not in _NATIVE:
        close = difflib.get_close_matches(env_id, _NATIVE, n=3, cutoff=0.5) or list(_NATIVE)
        raise ValueError(
            f"There is no environment {env_id!r} written in JAX; did you mean {' or '.join(close)}?"
        )
    env = _NATIVE[env_id]
    return env if action_repeat == 1 else ActionRepeat.of(env, action_repeat)
