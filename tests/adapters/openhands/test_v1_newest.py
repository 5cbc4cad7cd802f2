"""What a V1 connector remembers has a limit."""

from adapters.openhands.v1.newest import Newest


def test_above_the_limit_the_oldest_is_forgotten() -> None:
    known: Newest[int] = Newest(2)
    for name, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        known.put(name, value)
    assert [known.get(name) for name in "abc"] == [3, None, 4]
    assert (known.take("a"), known.take("a")) == (3, None)
