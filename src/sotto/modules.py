"""Imports of modules that users name, which all happen here, and where a class comes from.

Importing a module runs its code, so only a name that the user has typed may come here, never one
that was read from a file.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def look_here_too() -> None:
    """Appends the working directory to the import path, since modules may lie there."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def imported(module: str) -> ModuleType:
    """Imports a module, which may lie in the working directory.

    Raises:
        ModuleNotFoundError: there is no such module, or it imports one that there is not.
    """
    look_here_too()
    return importlib.import_module(module)


def is_defined_in(kind: type, *packages: str) -> bool:
    """Returns whether a class is the one that a module of these packages has under its name.

    A class can say of itself that it comes from any module.
    """
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind and kind.__module__.partition(".")[0] in packages


def named(target: str, kind: type, described: str) -> Any:
    """Returns the object that `module:name` names.

    Args:
        target: what the user typed.
        kind: type that the object must have.
        described: how to call this type in an error.

    Raises:
        ValueError: the module or the name is missing, or the object is of another type.
    """
    module, _, name = target.partition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"{target!r} must be MODULE:NAME, such as my_release:audited")
    try:
        found = imported(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"the module {module} cannot be imported: {error}") from error
    if not hasattr(found, name):
        raise ValueError(f"the module {module} has no {name!r}; define it there")
    value = getattr(found, name)
    if not isinstance(value, kind):
        raise ValueError(f"{target} is a {type(value).__name__}; it must be {described}")
    return value
