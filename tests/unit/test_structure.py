"""The structure of the code: the length of files, the width of functions, and the cycles of imports."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "adapters")
MOST_LINES = 620
MOST_PARAMETERS = 6
MOST_WIDE = 18

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> Mapping[str, ast.Module]:
    """Parse each production module, by its name."""
    return {name_of(file): ast.parse(file.read_text(encoding="utf-8")) for file in files()}


def files() -> list[Path]:
    """List the production files; templates are copied into packages of users."""
    found = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return [file for file in found if "templates" not in file.parts]


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_few_functions_have_many_parameters() -> None:
    wide = [
        f"{module}.{function.name}: {count}"
        for module, tree in trees().items()
        for function in ast.walk(tree)
        if isinstance(function, Function) and (count := count_parameters(function)) > MOST_PARAMETERS
    ]
    assert len(wide) <= MOST_WIDE, "\n".join(sorted(wide))


def count_parameters(function: Function) -> int:
    given = function.args
    named = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in named if name not in {"self", "cls"}]) + bool(given.vararg) + bool(given.kwarg)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {module: set(imports_of(module, tree)) - {module} for module, tree in trees().items()}
    reached = {module: reach(graph, module) for module in graph}
    circles = {frozenset(other for other in reached[one] if one in reached[other]) for one in graph}
    assert sorted(sorted(circle) for circle in circles if circle) == []


def reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Find the modules that a module imports, directly or through others."""
    found: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += graph[module]
    return found


def imports_of(module: str, tree: ast.AST) -> Iterator[str]:
    """Find the production modules that are imported when a module is loaded."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from [alias.name for alias in node.names if alias.name in trees()]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from [name for name in [inner if inner in trees() else f"{node.module}"] if name in trees()]
        else:
            yield from imports_of(module, node)


def test_each_package_states_what_it_imports() -> None:
    wrong: dict[str, set[str]] = {}
    for file in files():
        if file.name == "__init__.py":
            docstring = ast.get_docstring(trees()[name_of(file)]) or ""
            stated = set(re.findall(r"`([\w.]+)`", docstring.rpartition("May import ")[2]))
            used = set(packages_used(file.parent))
            if stated != used:
                wrong[str(file.relative_to(ROOT))] = stated ^ used
    assert wrong == {}


def packages_used(folder: Path) -> Iterator[str]:
    """Yield the other packages that the modules of a folder import, without `gateway.`."""
    own = name_of(folder / "__init__.py").removeprefix("gateway.sdk.").split(".")[:2]
    for file in folder.glob("*.py"):
        for node in ast.walk(trees()[name_of(file)]):
            match node:
                case ast.Import(names=names):
                    modules = [one.name for one in names]
                case ast.ImportFrom(module=str(module)):
                    modules = [module]
                case _:
                    continue
            for parts in (module.split(".")[:2] for module in modules):
                if parts[0] in {*PACKAGES, "dragoman"} and len(parts) > 1 and parts != own:
                    yield ".".join(parts).removeprefix("gateway.")


_REPLACED = {"Handle", "TimerHandle", "Server", "BaseTransport", "Transport", "SubprocessTransport"}
"""Classes of asyncio from which those of uvloop do not inherit."""


def test_no_code_expects_a_class_of_asyncio_that_uvloop_replaces() -> None:
    found = [f"{name}:{line}" for name, tree in trees().items() for line in expected_classes(tree)]
    assert found == []


def test_an_expected_class_of_asyncio_is_found() -> None:
    source = (
        "isinstance(x, asyncio.TimerHandle)\nisinstance(x, int | asyncio.Task)\nisinstance(x, (int, asyncio.Handle))\n"
    )
    assert list(expected_classes(ast.parse(source))) == [1, 3]


def expected_classes(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, expected]) | ast.MatchClass(cls=expected):
                for part in ast.walk(expected):
                    match part:
                        case ast.Attribute(value=ast.Name(id="asyncio"), attr=name) if name in _REPLACED:
                            yield node.lineno if isinstance(node, ast.Call) else expected.lineno
                        case _:
                            pass
            case _:
                pass
