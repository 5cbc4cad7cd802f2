"""That a coroutine begun without a task goes on where it waits, with whatever came of that."""

import asyncio

import pytest

from gateway.links.begun import begun


async def test_what_waits_for_nothing_is_done_at_once() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    assert begun(work()) is None
    assert done == [1]


async def test_what_waits_goes_on_in_whoever_waits_for_the_rest() -> None:
    loop, done = asyncio.get_running_loop(), list[str]()
    first, second = loop.create_future(), loop.create_future()

    async def work() -> None:
        done.append(await first)
        done.append(await second)

    rest = begun(work())
    assert rest is not None
    loop.call_soon(first.set_result, "first")
    loop.call_later(0.01, second.set_result, "second")
    await rest
    assert done == ["first", "second"]


async def test_what_it_raises_comes_out_of_the_rest() -> None:
    waits = asyncio.get_running_loop().create_future()

    async def at_once() -> None:
        raise OSError("at once")

    async def later() -> None:
        await waits
        raise OSError("later")

    for work, reason in ((at_once(), "at once"), (later(), "later")):
        rest = begun(work)
        if not waits.done() and reason == "later":
            waits.set_result(None)
        assert rest is not None
        with pytest.raises(OSError, match=reason):
            await rest


async def test_a_time_out_of_whoever_waits_ends_the_work() -> None:
    ended: list[type[BaseException]] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except BaseException as exc:
            ended.append(type(exc))
            raise

    rest = begun(work())
    assert rest is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await rest
    assert ended == [asyncio.CancelledError]
