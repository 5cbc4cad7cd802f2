"""Compares the production lines of each folder with the budgets in `.github/weight.toml`.

    python -m tests.weight           # fails above a budget
    python -m tests.weight --write   # sets the budgets to the present lines

It counts the Python files that git tracks. Tests and `gateway/testing` are reported, without a budget.
"""

import argparse
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADER = """\
# The budget of production lines of each folder. `make weight` fails above a budget: remove lines, or raise the budget
# and give the reason in the commit. `python -m tests.weight --write` sets all budgets to the present lines.

[lines]
"""


def count(root: Path) -> tuple[Counter[str], int]:
    """Count the lines of each production folder, and those of tests and simulators together."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=root, capture_output=True, text=True, check=True)
    production: Counter[str] = Counter()
    testing = 0
    for name in filter(None, listed.stdout.split("\0")):
        parts, path = Path(name).parts, root / name
        lines = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
        if name.startswith(("tests/", "gateway/testing/")):
            testing += lines
        elif name.startswith(("gateway/", "adapters/")):
            production["/".join(parts[: 2 if len(parts) > 2 else 1])] += lines
    return production, testing


def compare(lines: Mapping[str, int], budgets: Mapping[str, int]) -> list[str]:
    """List the folders above their budget, without a budget, or with a budget and no file."""
    found = [
        f"{name} has {lines[name]:,} lines, {lines[name] - budgets[name]:,} above its budget"
        for name in sorted(lines.keys() & budgets.keys())
        if lines[name] > budgets[name]
    ]
    found += [f"{name} has {lines[name]:,} lines and no budget" for name in sorted(lines.keys() - budgets.keys())]
    return found + [f"{name} has a budget and no Python file" for name in sorted(budgets.keys() - lines.keys())]


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Print the lines of each folder and each problem; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.weight", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="Set the budgets to the present lines.")
    file = root / ".github/weight.toml"
    lines, testing = count(root)
    if parser.parse_args(arguments).write:
        rows = "".join(f'"{name}" = {number}\n' for name, number in sorted(lines.items()))
        file.write_text(HEADER + rows, encoding="utf-8")
    budgets: dict[str, int] = tomllib.loads(file.read_text(encoding="utf-8"))["lines"]
    for name, number in lines.most_common():
        sys.stdout.write(f"{number:7,} of {budgets.get(name, 0):7,}  {name}\n")
    sys.stdout.write(f"{lines.total():7,} of {sum(budgets.values()):7,}  in all; {testing:,} in tests and simulators\n")
    problems = compare(lines, budgets)
    for problem in problems:
        sys.stdout.write(f"{problem}: see .github/weight.toml\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
