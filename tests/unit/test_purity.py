"""What calls itself pure is held to it: the contract of `make imports` names it, or a package around it."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAYS = re.compile(r"\bpure[.:]", re.IGNORECASE)
WORDS = {"http": "http.HTTPStatus", "urllib": "urllib.parse."}
"""What is pure in packages that do I/O as well, which import-linter does not take apart."""


def pure() -> Iterator[tuple[str, ast.Module]]:
    """Every module whose docstring says that it is pure."""
    for path in sorted([*(ROOT / "gateway").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]):
        source = path.read_text(encoding="utf-8")
        if not SAYS.search(source):
            continue
        tree = ast.parse(source)
        if SAYS.search(ast.get_docstring(tree) or ""):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield name.removeprefix("gateway.sdk."), tree


def test_whatever_calls_itself_pure_is_in_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    sources = {name for one in contracts if one["name"] == "What is pure stays pure" for name in one["source_modules"]}
    names = [name for name, _ in pure()]
    assert len(names) > 100
    missing = [name for name in names if not any(f"{name}.".startswith(f"{source}.") for source in sources)]
    assert not missing, f"add them to the contract in pyproject.toml: {missing}"


def test_of_packages_that_do_io_as_well_only_the_words_are_imported() -> None:
    found: list[str] = []
    for name, tree in pure():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                taken = {one.name for one in node.names if one.name.split(".")[0] in WORDS}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in WORDS:
                taken = {f"{node.module}.{one.name}" for one in node.names}
            else:
                continue
            found += [
                f"{name}:{node.lineno} {one}"
                for one in taken
                if not one.startswith(WORDS[one.split(".", maxsplit=1)[0]])
            ]
    assert not found
