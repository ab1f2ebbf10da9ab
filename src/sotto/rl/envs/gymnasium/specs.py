"""Names of Gymnasium environments. Every look-up of such a name happens here.

An environment has one name, in Gymnasium's own syntax with wrappers after it:

```
Env-v0                                  registered by Gymnasium, a plug-in, or `gymnasium.register`
my_package.envs:Env-v0                  registered when my_package.envs is imported
my_package.envs:Env-v0+my_package.wrappers:Scaled+gymnasium.wrappers:FlattenObservation
```

Wrappers are `module:Wrapper`, the innermost first. Each is a subclass of `gymnasium.Wrapper` that
takes the environment alone.

Importing a module runs its code. A name that was read from a file, such as another person's run
directory or dataset, is therefore looked up only if the user has given the same name. Code that
reads a name from a file must call `sotto.rl.envs.registry.from_data` first. The modules of an
environment that meets real people are imported only in other processes
(`sotto.rl.envs.gymnasium.unseen`).
"""

import contextlib
import importlib
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import gymnasium as gym

from sotto import modules
from sotto.extras import EXTRAS


def spec_of(env_id: str) -> Any:
    """Returns Gymnasium's specification of the environment of this name.

    The modules in the name are imported. They may lie in the working directory.

    Raises:
        ValueError: the name is not of the form above, a module cannot be imported, or there is no
            such environment or wrapper.
    """
    module, name, wrappers = _parts(env_id)
    for needed in _modules(module, wrappers):
        _import(needed, env_id)
    spec = _registered(env_id, name)
    added = []
    for wrapper in wrappers:
        made_in, _, made_by = wrapper.partition(":")
        found = getattr(sys.modules[made_in], made_by, None)
        # Gymnasium would call anything else too: a name must not choose an arbitrary function.
        if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
            raise ValueError(f"{made_in} has no wrapper {made_by!r}, which {env_id} names")
        added.append(gym.envs.registration.WrapperSpec(made_by, wrapper, {}))
    return replace(spec, additional_wrappers=(*spec.additional_wrappers, *added))


def remote_spec(env_id: str) -> Any:
    """Returns what another process needs to make an environment, without importing its modules.

    Returns:
        The environment's specification, or its name if that has a module in it. `make` takes
        either.

    Raises:
        ValueError: the name is not of the form above, or there is no such module or environment.
    """
    module, name, wrappers = _parts(env_id)
    modules.look_here_too()
    for needed in _modules(module, wrappers):
        if find_spec(needed.partition(".")[0]) is None:
            raise ValueError(f"Gymnasium cannot make {env_id!r}: there is no module {needed}")
    return env_id if module or wrappers else _registered(env_id, name)


def make(environment: Any, options: dict[str, Any]) -> gym.Env[Any, Any]:
    """Makes an environment in this process.

    Args:
        environment: the result of `spec_of` or `remote_spec`.
        options: keyword arguments of `gymnasium.make`.

    Raises:
        ValueError: as for `spec_of`.
    """
    spec = spec_of(environment) if isinstance(environment, str) else environment
    with _quiet(spec):
        return gym.make(spec, disable_env_checker=True, **options)


def can_be_sent(spec: Any) -> bool:
    """Returns whether another process can make the environment.

    It cannot if the class is defined in the main program, in a notebook or inside a function.
    """
    made_by = [spec.entry_point, *(one.entry_point for one in spec.additional_wrappers)]
    if any(getattr(one, "__module__", None) == "__main__" for one in made_by):
        return False
    try:
        pickle.dumps(spec)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _parts(env_id: str) -> tuple[str | None, str, tuple[str, ...]]:
    """Returns the module if there is one, Gymnasium's own id, and the wrappers."""
    environment, *wrappers = env_id.split("+")
    module, colon, name = environment.rpartition(":")
    dotted = [*([module] if colon else []), *(one.replace(":", ".") for one in wrappers)]
    well_formed = all(word.isidentifier() for one in dotted for word in one.split("."))
    if not well_formed or any(one.count(":") != 1 for one in wrappers):
        raise ValueError(
            f"{env_id!r} is not a name of an environment; write Env-v0 or module:Env-v0, with "
            "wrappers after it as in Env-v0+module:Wrapper"
        )
    return (module if colon else None), name, tuple(wrappers)


def _modules(module: str | None, wrappers: tuple[str, ...]) -> list[str]:
    return [*([module] if module else []), *(one.partition(":")[0] for one in wrappers)]


def _registered(env_id: str, name: str) -> Any:
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        raise ValueError(f"Gymnasium cannot make {env_id!r}: {error}") from error


def _import(module: str, env_id: str) -> None:
    try:
        modules.imported(module)
    except ModuleNotFoundError as error:
        if (extra := EXTRAS.get(error.name or "")) is not None:
            raise ValueError(
                f"{env_id} needs a package that is not installed: pip install 'sotto[{extra}]'"
            ) from error
        raise ValueError(
            f"{env_id} names the module {module}, which cannot be imported: {error}"
        ) from error


@contextlib.contextmanager
def _quiet(environment: Any) -> Iterator[None]:
    """Silences MuJoCo's warnings about Gymnasium's own models, one for each copy."""
    if "mujoco" not in str(getattr(environment, "entry_point", environment)):
        yield
        return
    mujoco = importlib.import_module("mujoco")

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_warn_of_nothing)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _warn_of_nothing(_warning: str) -> None:
    """Ignores a warning, which MuJoCo would write to the terminal and into a file."""
