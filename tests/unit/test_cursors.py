"""Cursors: they name their list, and are read across releases."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import get_args

import pytest

from gateway.errors import InvalidRequest
from gateway.store.encoding import ListName, read_cursor, write_cursor

LISTS: tuple[ListName, ...] = get_args(ListName)


@pytest.mark.parametrize("of", LISTS)
@pytest.mark.parametrize("place", [1, 7, 12_345, 2**62])
def test_a_cursor_is_read_by_the_list_that_gave_it_out_and_by_no_other(of: ListName, place: int) -> None:
    cursor = write_cursor(of, place)
    assert cursor.replace("-", "").replace("_", "").isalnum()
    assert read_cursor(cursor, of, int) == (place,)
    for other in LISTS:
        if other != of:
            with pytest.raises(InvalidRequest, match="not one that this list gave out"):
                read_cursor(cursor, other, int)


def test_cursors_that_name_no_list_are_read_as_earlier_releases_wrote_them() -> None:
    position = [1_700_000_000_000_000, "session", 3, "destination:log"]
    old = urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")
    assert read_cursor(old, "sends", int, str, int, str) == tuple(position)
    for of in LISTS:
        assert read_cursor("WzVd", of, int) == (5,)


@pytest.mark.parametrize("of", LISTS)
def test_a_cursor_is_json_of_its_place_alone_which_earlier_releases_read(of: ListName) -> None:
    cursor = write_cursor(of, 5)
    assert json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))) == [5]


@pytest.mark.parametrize("written", [b"[5]  ", b"[5]\t ", b"[5]\x0b", b"5 ", b'["5"] '])
def test_what_nobody_wrote_is_refused(written: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_cursor(urlsafe_b64encode(written).decode().rstrip("="), "sessions", int)
