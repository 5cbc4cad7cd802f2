"""A TCP proxy that delays every byte, and the end of each connection, as a distant network does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def delayed(port: int, seconds: float) -> AsyncGenerator[int]:
    """Forward a free port of this machine to another one, `seconds` later in each direction; gives the free port."""
    tasks: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                moment, data = await arrived.get()
                await asyncio.sleep(max(0.0, moment - loop.time()))
                if not data:
                    return
                writer.write(data)

        delivering = asyncio.create_task(deliver())
        try:
            data = b"-"
            while data:
                with suppress(ConnectionError):
                    data = await reader.read(65_536)
                arrived.put_nowait((loop.time() + seconds, data))
            await delivering
        finally:
            delivering.cancel()
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        try:
            away_reader, away_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(forward(reader, away_writer), forward(away_reader, writer))
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks), timeout=5)
