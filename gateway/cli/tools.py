"""`dragoman tools`: prints the section `tools` of a backend, or writes it into the configuration file."""

import importlib
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from gateway.cli.config_file import ConfigOption, choose
from gateway.cli.errors import Misused, Refusal, report_errors
from gateway.cli.help import examples
from gateway.cli.options import flag, option
from gateway.cli.terminal import note, show_problems
from gateway.errors import OperatorError

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node

    from gateway.errors import Problem

commands = typer.Typer()

_BREAKS = frozenset("\x85\u2028\u2029")
"""Characters that YAML 1.1 reads as line breaks."""


@commands.command(
    epilog=examples(
        "dragoman tools --from backend:tools",
        "dragoman tools --from backend:tools --write      into gateway.yaml",
        more="--write replaces the description and parameters of the backend's tools, adds new tools, and keeps\n"
        "everything else in the file.",
    )
)
def tools(
    source: str = option("--from", "MODULE:NAME", "The backend's Tools object, in uvicorn's notation.", default=...),
    *,
    write: bool = flag("--write", "Update the configuration file instead of printing."),
    config: ConfigOption = None,
) -> None:
    """Print the `tools:` section for a backend's tools."""
    with report_errors():
        declared = import_tools(source)
        if write:
            path = choose(config)
            _write(path, declared)
        elif config is not None:
            raise Misused("--config requires --write")
        else:
            typer.echo(dump_section(declared), nl=False)
        show_problems(source, _warn_about_models(declared))


def import_tools(place: str) -> dict[str, Any]:
    """Import `module:attribute`, and return the tools that it declares, by name.

    Raises:
        Misused: the place has another form. Refusal: it cannot be imported, or declares no tools.
    """
    module_name, colon, attribute = place.partition(":")
    if not (colon and attribute and module_name.replace(".", "").isidentifier() and attribute.isidentifier()):
        raise Misused("use the form MODULE:NAME, as for uvicorn: backend:tools")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:
        raise Refusal(
            f"{module_name} cannot be imported: {type(exc).__name__}: {exc}",
            "run this in the folder and environment where your server starts",
        ) from exc
    declarations = getattr(getattr(module, attribute, None), "declarations", None)
    if not callable(declarations):
        text = f"{module_name}.{attribute} is not a Tools object of dragoman.kit"
        raise Refusal(text, "name the variable that holds `Tools(…)`")
    declared = cast("dict[str, Any]", declarations())
    if not declared:
        raise Refusal(
            f"{module_name}.{attribute} declares no tools",
            'import the modules that have the functions of @tools.tool("name")',
        )
    return declared


def dump_section(declared: Mapping[str, Any]) -> str:
    """Write the section `tools` in YAML."""
    return _dump({"tools": dict(declared)})


def update_section(text: str, declared: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return a configuration with these tools, and the names of the added and changed ones.

    Other tools, other members of the tools, and the rest of the text stay as they are. Comments inside a changed tool
    are lost.

    Raises:
        OperatorError: the text is not a YAML mapping, or its `tools` is not one.
    """
    import yaml

    try:
        root, values = yaml.compose(text), yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise OperatorError(f"invalid YAML: {exc}".splitlines()[0]) from exc
    if root is None:
        return text + dump_section(declared), list(declared)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise OperatorError("the configuration must be a block mapping: one `name:` per line, without braces around it")
    section = _member(root, "tools")
    if section is None:
        return f"{text.rstrip()}\n\n{dump_section(declared)}", list(declared)
    present: dict[str, Any] = values["tools"] or {}
    if not isinstance(present, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - a user wrote it
        raise OperatorError("`tools` must be a mapping of names to tools")
    empty: dict[str, Any] = {}
    merged = {name: {**(present.get(name) or empty), **tool} for name, tool in declared.items()}
    changed = [name for name, tool in merged.items() if present.get(name) != tool]
    if not isinstance(section, yaml.MappingNode) or section.flow_style or not section.value:
        merged = {**present, **merged}
        start, end = section.start_mark.index, _end_of(section, text)
        return f"{text[:start].rstrip()}\n{_indent(_dump(merged), 2)}{text[end:]}", changed
    column = section.start_mark.column
    edits: list[tuple[int, int, str]] = []
    for name in changed:
        value = _member(section, name)
        if value is None:
            end = _end_of(section, text)
            edits.append((end, end, f"\n{_indent(_dump({name: merged[name]}), column).rstrip()}"))
        else:
            lines = _indent(_dump(merged[name]), column + 2).rstrip()
            start = text.rindex(":", 0, value.start_mark.index) + 1
            edits.append((start, _end_of(value, text), f"\n{lines}"))
    # From the end, so that the earlier positions stay valid. Additions share the last position.
    for start, end, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        text = text[:start] + new + text[end:]
    return text, changed


def _write(path: Path, declared: Mapping[str, Any]) -> None:
    """Replace the file in one step, and print the changed tools."""
    target = path.resolve()
    try:
        text, changed = update_section(target.read_text(encoding="utf-8"), declared)
        if changed:
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
            ) as written:
                written.write(text)
            made = Path(written.name)
            made.chmod(target.stat().st_mode & 0o777)
            made.replace(target)
    except (OSError, UnicodeDecodeError) as exc:
        raise OperatorError(f"{path}: {exc}") from exc
    except OperatorError as exc:
        raise OperatorError(f"{path}: {exc}") from exc
    note(f"{path}: {'updated ' + ', '.join(changed) if changed else 'nothing to update'}")


def _dump(value: object) -> str:
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
    # The library writes these line breaks as they are, and would read them as spaces.
    if _BREAKS & set(text):
        text = yaml.safe_dump(value, sort_keys=False, width=110)
    return text


def _indent(text: str, columns: int) -> str:
    return "".join(f"{' ' * columns}{line}" if line.strip() else line for line in text.splitlines(keepends=True))


def _member(node: "MappingNode", name: str) -> "Node | None":
    return next((value for key, value in node.value if key.value == name), None)


def _end_of(node: "Node", text: str) -> int:
    """Return the end of a value; the end mark of a block is behind the comments and empty lines after it."""
    import yaml

    match node:
        case yaml.MappingNode(flow_style=False, value=[*_, (_, last)]):
            return _end_of(last, text)
        case yaml.SequenceNode(flow_style=False, value=[*_, last]):
            return _end_of(last, text)
        case _:
            return len(text[: node.end_mark.index].rstrip())


def _warn_about_models(declared: Mapping[str, Any]) -> "list[Problem]":
    """List the parts of tools that model APIs reject; problems have no line, as they are not in a file."""
    from gateway.settings.lint_models import refusals
    from gateway.settings.place import Finding, report

    found = [
        Finding(("tools", name, *refusal.place), refusal.describe(), "warning")
        for name, tool in declared.items()
        for refusal in refusals(name, tool["parameters"])
    ]
    return [replace(one, message=f"{one.path}: {one.message}", line=None) for one in report(found, {})]
