"""The groups of states that SQL asks for are those of the tables, word for word as the indexes on them."""

import pytest

from gateway.store import states
from gateway.store.call import OPEN_STATES
from gateway.store.postgres import tables as postgres
from gateway.store.sqlite import schema as sqlite

INDEXED = ("OPEN_CALL", "PENDING", "DEAD_SEND", "WAITING", "UNHEARD")


@pytest.mark.parametrize("migrations", [sqlite.MIGRATIONS, postgres.MIGRATIONS], ids=["sqlite", "postgres"])
@pytest.mark.parametrize("name", INDEXED)
def test_each_group_that_is_asked_for_has_an_index(name: str, migrations: tuple[tuple[str, ...], ...]) -> None:
    texts = [" ".join(text.split()) for one in migrations for text in one if "CREATE INDEX" in text]
    # A later index replaces one with the same name.
    indexes = {text.split()[2]: text.replace("WHERE listed = 1 AND ", "WHERE ") for text in texts}
    assert any(text.endswith(f"WHERE {getattr(states, name)}") for text in indexes.values())


def test_the_group_of_open_calls_is_that_of_the_table() -> None:
    assert f"state IN {OPEN_STATES}" == states.OPEN_CALL
