"""Checks the number of a database's schema: the number of the last migration that it has had. Pure."""

from gateway.errors import EngineUnusable, SchemaTooNew


def check_number(database: str, number: int, *, first: int, newest: int) -> None:
    """Refuse a database that this release cannot migrate.

    Raises:
        EngineUnusable: it is of release 0.2.0 or earlier.
        SchemaTooNew: a newer release has migrated it.
    """
    has = f"{database} has schema {number} and this release supports {first} to {newest}"
    if number < first:
        # The last commit that migrates databases of release 0.2.0 and earlier.
        raise EngineUnusable(
            f"{has}: check out commit f18d4caa, run its `dragoman migrate` with this configuration, "
            "then start this release"
        )
    if number > newest:
        raise SchemaTooNew(f"{has}: run the newer release, or restore the backup from before the upgrade")
