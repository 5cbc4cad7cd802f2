"""The table of the faults: one row for each that is tried, leading to its test, written from what was observed."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.faults.table import PAGE, fault_of, lines_of, list_of, page_of, rows_of
from tests.simulation.search import FAULTS as KNOWN

FOLDER = Path(__file__).parent


def marks() -> Iterator[tuple[str, str, list[str]]]:
    """The faults that tests are marked with, the files they are in, and the known faults of the simulation."""
    for file in sorted(FOLDER.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="fault"), args=[ast.Constant(value=str(fault))], keywords=more):
                    yield fault, file.name, [ast.literal_eval(one.value) for one in more if one.arg == "simulated"]
                case _:
                    pass


def tried() -> dict[str, set[str]]:
    """The faults that tests are marked with, and the files they are in."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for fault, file, _ in marks():
        found[fault].add(file)
    return found


def test_each_fault_that_is_simulated_has_a_known_fault_which_the_simulation_finds() -> None:
    known = {path.stem for path in KNOWN.glob("*.patch")}
    simulated = {name for _, _, names in marks() for name in names}
    assert simulated
    assert simulated <= known


def test_each_fault_of_the_page_is_tried_by_the_test_that_it_leads_to() -> None:
    marked, lines = tried(), lines_of(PAGE.read_text())
    # A fault that is tried since has no row before `make faults` has run.
    assert set(lines) <= set(marked), "`make faults` writes the table anew"
    for fault, line in lines.items():
        found = fault_of(line)
        assert found is not None
        assert found[1] in marked[fault]


def test_the_page_is_what_the_code_would_write() -> None:
    page = PAGE.read_text()
    assert page == page_of(lines_of(page))


def test_no_fault_of_the_table_lost_or_doubled_anything() -> None:
    rows = [line.split(" | ") for line in lines_of(PAGE.read_text()).values()]
    assert rows
    assert {(row[3].strip(), row[4].strip()) for row in rows} <= {("0", "0"), ("", "")}


def test_no_held_call_of_the_table_left_otherwise_than_a_person_has_allowed() -> None:
    rows = [line.split(" | ") for line in lines_of(PAGE.read_text()).values()]
    found = {row[1]: row[-2].strip() for row in rows if "(test_held_calls.py)" in row[0]}
    assert found
    assert set(found.values()) == {"0"}


def test_figures_of_one_fault_are_added_up_over_its_tests() -> None:
    one = {
        "fault": "Fire", "file": "tests/faults/test_a.py", "test": "test_x", "store": "sqlite", "calls": 1000,
        "lost": 0, "different": 0, "wire": 1, "at_risk": 3, "repeats": 2, "twice": 1,
        "longest": 0.0,
    }  # fmt: skip
    other = {**one, "store": "postgres", "calls": 500, "longest": 1.26, "lost": 1}
    quiet = {**one, "fault": "Frost", "calls": 0, "at_risk": 0}
    half = {**other, "fault": "Flood", "at_risk": 0, "simulated": "leak", "unapproved": 3}
    assert [row.line() for row in rows_of([one, other, quiet, half])] == [
        "| [Fire](test_a.py) | both | 1,500 | 1 | 0 | 2 of 6 | 4 | 2 |  | 1.3 s |",
        "| [Frost](test_a.py) | SQLite |  |  |  |  |  |  |  |  |",
        (
            "| [Flood](test_a.py) | PostgreSQL; SQLite [simulated](../simulation/faults/leak.patch) "
            "| 500 | 1 | 0 |  | 2 | 1 | 3 | 1.3 s |"
        ),
    ]


def test_rows_of_other_runs_are_kept() -> None:
    fire = "| [Fire](test_a.py) | SQLite | 1 | 0 | 0 |  | 0 | 0 |  |"
    frost = "| [Frost](test_points.py) | SQLite | 1 | 0 | 0 |  | 0 | 0 |  |"
    assert list(lines_of(page_of({"Fire": fire, "Frost": frost})).values()) == [frost, fire]


def test_only_the_first_row_of_a_file_has_its_link() -> None:
    rows = {fault: f"| [{fault}](test_points.py) | SQLite | 1 | 0 | 0 |  | 0 | 0 |  |" for fault in ("Fire", "Frost")}
    page = page_of(rows)
    assert page.count("(test_points.py)") == 1
    assert lines_of(page) == rows


def test_the_list_of_what_is_moved_names_what_was_counted() -> None:
    page = "| moved | tests | seconds |\n|---|--:|--:|\n| `faults/` | 1 | 2 |\n| `a/` | 3 | 4 |\n"
    counted = [
        ("tests/faults/test_x.py", (2, 10.4)),
        ("tests/faults/test_y.py", (1, 0.2)),
        ("tests/faults/test_x.py", (1, 1.0)),
    ]
    assert list_of(page, counted) == page.replace("| 1 | 2 |", "| 4 | 12 |")
    # What could not run here says nothing.
    assert list_of(page, [("tests/a/test_b.py", (0, 0.1))]) == page
