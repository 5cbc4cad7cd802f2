"""The table of the README names every fault that is tried, and no other, and is what the figures make of it."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.faults.table import BEGIN, END, README, ROOT, insert, table_of

FOLDER = Path(__file__).parent


def tried() -> dict[str, set[str]]:
    """The faults that tests are marked with, and the files they are in."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted(FOLDER.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="fault"), args=[ast.Constant(value=str(fault))]):
                    found[fault].add(str(file.relative_to(ROOT)))
                case _:
                    pass
    return found


def shown() -> dict[str, str]:
    """The faults of the README's table, and the files they lead to."""
    table = README.read_text().partition(BEGIN)[2].partition(END)[0]
    return dict(re.findall(r"^\| \[(.+?)\]\((.+?)\) \|", table, re.MULTILINE))


def test_the_readme_shows_each_fault_that_a_test_tries_and_leads_to_it() -> None:
    marked, listed = tried(), shown()
    assert set(listed) == set(marked), "`make faults` writes the table anew"
    for fault, file in listed.items():
        assert file in marked[fault]


def test_no_fault_of_the_table_lost_or_doubled_anything() -> None:
    table = README.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| [")]
    assert rows
    assert {(row[3].strip(), row[4].strip()) for row in rows} <= {("0", "0"), ("", "")}


def test_figures_of_one_fault_are_added_up_over_its_tests() -> None:
    one = {
        "fault": "Fire", "file": "tests/faults/test_a.py", "test": "test_x", "store": "sqlite",
        "calls": 1000, "lost": 0, "different": 0, "repeats": 2, "longest": 0.0,
    }  # fmt: skip
    other = {**one, "store": "PostgreSQL, two instances", "calls": 500, "longest": 1.26}
    quiet = {**one, "fault": "Frost", "calls": 0}
    assert table_of([one, other, quiet]).splitlines()[4:6] == [
        "| [Fire](tests/faults/test_a.py) | SQLite; PostgreSQL, two instances | 1,500 | 0 | 0 | 4 | 1.3 s |",
        "| [Frost](tests/faults/test_a.py) | SQLite |  |  |  |  |  |",
    ]


def test_the_table_goes_between_its_marks_and_nowhere_else() -> None:
    assert insert(f"a\n{BEGIN}\nold\n{END}\nb", "new") == "a\nnew\nb"
    with pytest.raises(ValueError, match="has no"):
        insert("a\nb", "new")
