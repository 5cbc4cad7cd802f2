"""Imports the async function at a dotted path; an error gives the reason and the fix."""

import importlib
import inspect
import re
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any, cast

from gateway.errors import OperatorError

Function = Callable[..., Awaitable[Any]]
"""The function of a `python` executor: takes the `data` of a webhook, and optionally `report`; returns the result."""

PATH = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"

_FIX = "install the package in the gateway's environment, or add its folder to PYTHONPATH"
_MOST = 300


def find_function(path: str) -> Function:
    """Import `package.module:function`; a module is imported only once.

    Raises:
        OperatorError: it cannot be imported, is missing, or is not an async function of one argument.
    """
    if not re.match(PATH, path):
        raise OperatorError(f"{path[:_MOST]!r} is not the path of an async function; write package.module:function")
    name, _, inner = path.partition(":")
    found = getattr(_import(name), inner, None)
    if found is None:
        raise OperatorError(f"the module {name!r} has no {inner!r}; check the name after the colon")
    if not _is_async(found):
        raise OperatorError(f"{path!r} is not an async function; write `async def {inner}(call): ...`")
    try:
        inspect.signature(found).bind({}, **({"report": print} if takes_report(found) else {}))
    except TypeError as exc:
        text = f"{path!r} cannot be called with one argument ({exc}); write `async def {inner}(call): ...`"
        raise OperatorError(text) from exc
    return cast("Function", found)


def takes_report(function: Function) -> bool:
    """Whether a function has a parameter `report` after its first one."""
    return "report" in [*inspect.signature(function).parameters][1:]


def _import(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise OperatorError(f"there is no module {exc.name!r}; {_FIX}") from exc
        raise OperatorError(f"importing {name!r} failed: it needs {exc.name!r}; install that") from exc
    # The import runs the module, which may raise anything.
    except (Exception, SystemExit) as exc:
        reason = f"{type(exc).__name__}: {exc}".splitlines()[0][:_MOST]
        raise OperatorError(f"importing {name!r} failed with {reason}; fix the module") from exc


def _is_async(found: Any) -> bool:
    return inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(getattr(found, "__call__", None))  # noqa: B004
