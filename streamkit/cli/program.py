"""The program that MODULE:NAME names, and its parts."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from streamkit import Store, StreamkitError
from streamkit.arguments import check_function, completed

if TYPE_CHECKING:
    from streamkit.run import Program, ProgramOverStores

__all__ = ["load", "parts_of", "program_of"]

_EXPECTED = (
    "NAME is a Program, a view, route, process manager or Worker, a list of these, or a function without arguments "
    "that makes one"
)


def load(app: str) -> Any:
    """The object that MODULE:NAME names, or its result if it is a function. BadParameter if it is missing or raises."""
    from streamkit.run import Program, ProgramOverStores, Runnable

    module, separator, name = app.partition(":")
    if not separator or not name:
        raise _refusal(f"{app!r} is not MODULE:NAME")
    if "" not in sys.path:
        sys.path.insert(0, "")
    found: Any = _imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise _refusal(f"the module {module!r} has no {name!r}")
        found = getattr(found, part)
    if isinstance(found, type) or (callable(found) and not isinstance(found, (Program, ProgramOverStores, Runnable))):
        return _called(app, found)
    return found


def program_of(app: str) -> Program | ProgramOverStores:
    """The program that MODULE:NAME names, or a program of the parts that it names. BadParameter for anything else."""
    from streamkit.run import Program, ProgramOverStores, Runnable

    found = load(app)
    if isinstance(found, (Program, ProgramOverStores)):
        return found
    parts = parts_of(found)
    if not any(isinstance(part, Runnable) for part in parts):
        kinds = ", ".join(dict.fromkeys(type(part).__name__ for part in parts))
        what = f"a list of {kinds or 'nothing'}" if isinstance(found, (list, tuple)) else f"of type {kinds}"
        raise _refusal(f"{app} is not a program: it is {what}. {_EXPECTED}")
    try:
        return Program(_store_of(parts), parts)
    except TypeError as error:
        raise _refusal(str(error)) from None


def parts_of(found: Any) -> list[Any]:
    from streamkit.run import Program

    if isinstance(found, Program):
        return found.parts
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise _refusal(f"there is no module {module!r} in this folder or on the Python path") from None
        raise _refusal(f"the module {module!r} cannot be imported: {_raised(error)}") from None
    except (StreamkitError, OSError):
        raise  # a refusal of the store, not wrong usage
    except (Exception, SystemExit) as error:
        raise _refusal(f"the module {module!r} cannot be imported: {_raised(error)}") from None


def _called(app: str, function: Any) -> Any:
    try:
        check_function(app, function, "no arguments")
        return completed(app, function())
    except (StreamkitError, OSError):
        raise
    except (Exception, SystemExit) as error:
        raise _refusal(f"{app} failed when it was called to make a program: {_raised(error)}. {_EXPECTED}") from None


def _raised(error: BaseException) -> str:
    """An exception as one line, with the place in the user's code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = last.filename.startswith("<") or last.filename in (__file__, completed.__code__.co_filename)
    where = "" if ours else f" ({last.filename}:{last.lineno})"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _store_of(parts: list[Any]) -> Store:
    for part in parts:
        store = getattr(part, "store", None)
        if isinstance(store, Store):
            return store
    raise _refusal("none of its parts knows its store: make a Program(store, parts)")


def _refusal(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="MODULE:NAME")
