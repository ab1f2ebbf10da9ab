"""Environments written in JAX: ours by their Gymnasium ids, those of users by MODULE:CLASS."""

import difflib

from sotto.rl.envs.acrobot import Acrobot
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.cartpole import CartPole, CentredCartPole
from sotto.rl.envs.dosing import Dosing
from sotto.rl.envs.hiv import HIV
from sotto.rl.envs.line import Line
from sotto.rl.envs.own import is_own, own
from sotto.rl.envs.river_swim import EXCHANGED, RiverSwim, RiverSwimParams
from sotto.rl.envs.wrappers import ActionRepeat

_NATIVE: dict[str, AnyEnvironment] = {
    env.id: env
    for env in (
        *(CartPole(), Acrobot(), Line(), CentredCartPole(), HIV()),
        *(Dosing(), Dosing.with_random_meals()),
        *(RiverSwim(), RiverSwim(id="RiverSwim90-v0", default_params=RiverSwimParams(stay=0.9))),
        RiverSwim(id="RiverSwimExchanged-v0", exchanged=EXCHANGED),
        RiverSwim(
            id="RiverSwimExchanged90-v0",
            default_params=RiverSwimParams(stay=0.9),
            exchanged=EXCHANGED,
        ),
    )
}


def is_native(env_id: str) -> bool:
    """Returns whether the environment is written in JAX; Gymnasium runs all others.

    No module is imported: the name alone says it.
    """
    return env_id in _NATIVE or is_own(env_id)


def from_data(env_id: str, source: object, named: str | None = None) -> str:
    """Returns an environment's name that was read from a file, if it is safe to make it.

    The modules in a name like "module:Name-v0+module:Wrapper" are imported, which runs their code.
    Only the user may therefore give such a name.

    Args:
        env_id: the name.
        source: the file.
        named: the value of --env-id.

    Raises:
        ValueError: the name contains a module, and the user did not give the same name.
    """
    modules = [one.rpartition(":")[0] for one in env_id.split("+") if ":" in one]
    if modules and env_id != named:
        raise ValueError(
            f"{source} names the environment {env_id!r}, and making that would import "
            f"{modules[0]!r} and run its code; give --env-id {env_id} if you "
            "trust it"
        )
    return env_id


def make(env_id: str, action_repeat: int = 1) -> AnyEnvironment:
    """Returns the environment of this name, with each action applied `action_repeat` times.

    A module that the name holds is imported, so `from_data` must have seen a name from a file.

    Raises:
        ValueError: the name is unknown, the user's class is none that a training could use, or the
            repeat does not divide the time limit.
        EnvironmentFailed: code of the user's raised an exception.
    """
    if not is_native(env_id):
        close = difflib.get_close_matches(env_id, _NATIVE, n=3, cutoff=0.5) or list(_NATIVE)
        raise ValueError(
            f"this needs an environment written in JAX, and {env_id!r} is none; did you mean "
            f"{' or '.join(close)}?"
        )
    env = _NATIVE[env_id] if env_id in _NATIVE else own(env_id)
    return env if action_repeat == 1 else ActionRepeat.of(env, action_repeat)


def make_ours(env_id: str, why: str) -> AnyEnvironment:
    """Returns an environment of sotto's, where one of a user's would not do.

    Args:
        env_id: the environment's name.
        why: reason that others would not do, for the error.

    Raises:
        ValueError: it is a user's, or there is none of this name.
    """
    if is_own(env_id):
        raise ValueError(f"{env_id} is not sotto's own ({why}); choose another, such as Line-v0")
    return make(env_id)
