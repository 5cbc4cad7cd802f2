"""What happens in a world: each step is one thing that its seed chooses."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.store.sqlite import backup
from gateway.store.sqlite.lock import SIDES, before_restore
from tests.simulation.clients import Writer
from tests.simulation.instance import Exchange
from tests.simulation.people import allow_waiting, decide, key_of
from tests.simulation.policy import APPROVERS, TOOLS, against
from tests.simulation.store_server import RemoteEngine
from tests.simulation.watch import holders

if TYPE_CHECKING:
    from tests.simulation.huma import HumaServer
    from tests.simulation.world import World

API_KEY = "dk_simulated-key-of-the-world"


def _server(world: "World") -> "HumaServer":
    return world.servers[world.random.choice(("old", "new", "new"))]


_ODD: tuple[Any, ...] = (
    None, {"n": -0.5}, "text", 17, True, [1], [{"n": 1}],
    {"": 2**53, "é\u2028": [None, [["x"]]], "1": {"a": {"a": "\u0001"}}},
)  # fmt: skip
"""Arguments that agents also send."""


async def call(world: "World") -> None:
    server = _server(world)
    world.number += 1
    tool = world.random.choice(TOOLS)
    arguments: Any = {"n": world.number}
    match world.random.random():
        case chance if chance < 0.05:
            arguments = world.random.choice(_ODD)
        case chance if chance < 0.15:
            arguments["big"] = "x" * int(10 ** (world.random.random() * 5))
        case _:
            pass
    made = await server.agent.call(tool, arguments, f"call-{world.number}")
    if server.agent.connected:
        world.calls.append((server.agent.dialect, made))
    world.tell(f"{server.agent.agent_id} calls {tool} as call-{world.number}")


async def repeat(world: "World") -> None:
    if not world.calls:
        return
    dialect, made = world.random.choice(world.calls[-20:])
    server = world.servers["old" if dialect == "0.1" else "new"]
    await server.agent.call(made.tool, made.arguments, made.call_id)
    world.tell(f"{server.agent.agent_id} repeats {made.call_id}")


async def cancel(world: "World") -> None:
    if not world.calls:
        return
    dialect, made = world.random.choice(world.calls[-5:])
    server = world.servers["old" if dialect == "0.1" else "new"]
    await server.agent.cancel(made)
    world.tell(f"{server.agent.agent_id} cancels {made.call_id}")


async def talk(world: "World") -> None:
    server = _server(world)
    world.number += 1
    texts = [f"message {world.number}.{index}" for index in range(world.random.randint(1, 3))]
    world.loop.create_task(server.agent.say(texts, call_id=f"burst-{world.number}"))
    world.tell(f"{server.agent.agent_id} says {len(texts)} messages as burst-{world.number}")


async def garbage(world: "World") -> None:
    server = _server(world)
    packet = world.random.choice(
        ('2["event",{"type":"tool-call"}]', '2["event",17]', "2{", '2["event",{"type":"tool-call","toolCallId":7}]',
         '2["other",{}]', '2["event",{"type":"status","status":"busy"}]', "29999999999999999999[]", '2["event",NaN]')
    )  # fmt: skip
    await server.agent.emit_text(packet)
    world.tell(f"{server.agent.agent_id} sends {packet}")


async def post(world: "World") -> None:
    """A client posts a context to an agent, or calls a tool."""
    name = world.random.choice(("old", "new"))
    found = world.read("SELECT session_id FROM sessions WHERE runtime = ?", name) if world.uses_http else ()
    if not found:
        return
    world.number += 1
    path, key, repeats = f"/v1/sessions/{found[0][0]}", f"key-{world.number}", world.random.choice((0, 0, 1))
    chance = world.random.random()
    if chance < 0.4:
        body: dict[str, Any] = {"tool": world.random.choice(TOOLS), "arguments": {"n": world.number}}
        ask, by = world.ask, "a client"
        if world.is_gated and world.random.random() < 0.3:
            by = world.random.choice(APPROVERS)
            ask = partial(_ask_as, world, by)
        writer = Writer(ask, f"{path}/calls?wait={world.random.choice((0, 1, 30))}", body, key, repeats=repeats)
        world.tell(f"{by} calls {body['tool']} of {name} with {key}")
    elif chance < 0.7:
        text = f"said {world.number}"
        body = {"events": [{"kind": "message.posted", "author": {"name": "Alice"}, "content": text}]}
        writer = Writer(world.ask, f"{path}/events", body, key, repeats=repeats)
        world.tell(f"a client posts a message to {name} with {key}")
    else:
        body = {"events": [{"kind": "context.updated", "name": "board", "context": {"n": world.number}}]}
        writer = Writer(world.ask, f"{path}/events", body, key, repeats=repeats)
        world.tell(f"a client posts a context to {name} with {key}")
    world.writers.append(writer)
    world.loop.create_task(writer.write())


def _ask_as(world: "World", name: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> Exchange | None:
    return world.ask(method, path, body, {"authorization": f"Bearer {key_of(name)}", **headers})


async def follow(world: "World") -> None:
    """A client begins to follow."""
    if world.uses_http and len(world.followers) < 8 and world.any_up() is not None:
        world.follow()


async def order_cancel(world: "World") -> None:
    """An operator cancels an open call."""
    # Of the accepted ones first: only those wait for long.
    found = world.read(
        "SELECT call_id FROM calls WHERE state IN ('queued', 'dispatched', 'accepted', 'held') ORDER BY state"
    )
    if not world.uses_http or not found:
        return
    call_id = found[int(len(found) * world.random.random() ** 2)][0]
    exchange = world.ask("POST", f"/v1/calls/{call_id}/cancel", b"{}")
    if exchange is not None:
        world.tell(f"an operator cancels {call_id[:8]}")
        world.loop.create_task(_see_cancel(world, call_id, exchange))


async def _see_cancel(world: "World", call_id: str, exchange: Exchange) -> None:
    await exchange.whole()
    if exchange.status == 202:
        world.watch.canceled(call_id)


async def redrive(world: "World") -> None:
    """An operator lets an ended call run again, under the same key: it is held again if its route asks now."""
    found = world.read(
        "SELECT call_id FROM calls WHERE finished_at IS NOT NULL AND redrive_of IS NULL ORDER BY id DESC LIMIT 10"
    )
    if found:
        (call_id,) = world.random.choice(found)
        world.tell(f"an operator redrives {call_id[:8]}")
        world.ask("POST", f"/v1/calls/{call_id}/redrive", b"{}")


async def reload(world: "World") -> None:
    """Change the configuration, and let each instance read it again."""
    world.draw_limits()
    world.draw_routes()
    world.most_attempts = max(world.most_attempts, world.attempts)
    world.fewest_attempts = min(world.fewest_attempts, world.attempts)
    world.tell(
        f"the configuration changes: {world.attempts} attempts, again to {world.target}, {world.concurrency} at once,"
        f" {world.limits}{f', {world.routes}' if world.is_gated else ''}"
    )
    world.reload()


async def surprise(world: "World") -> None:
    """While a call waits to be sent, change its routes, or kill a gateway."""
    waiting = world.read(
        "SELECT tool FROM calls WHERE state = 'queued' AND attempt = 0 ORDER BY approved_sha IS NULL LIMIT 2"
    )
    if waiting and world.random.random() < 0.4:
        await kill(world)
    elif waiting:
        (tool,) = world.random.choice(waiting)
        world.routes = against(world.random, world.routes, tool)
        world.tell(f"the routes of {tool} change, while a call of it waits: {world.routes}")
        world.reload()


async def back_up(world: "World") -> None:
    """Copy the database, as `dragoman backup` does."""
    if world.store is not None or not world.read("SELECT 1 FROM calls LIMIT 1"):
        return
    world.copies += 1
    world.copy = world.path.with_name(f"copy-{world.copies}.db")
    backup.back_up(world.path, world.copy)
    world.tell("the database is copied")


async def restore_copy(world: "World") -> None:
    """Stop the gateway, put the last copy of the database in its place, and start it again."""
    instance = world.instances[0]
    if world.copy is None or instance.process is None:
        return
    world.tell("the gateway is killed, and the copy of the database restored")
    world.disturb()
    instance.kill()
    rows = world.read("SELECT call_id, native_call_id FROM calls")
    world.forgotten.update(name for row in rows for name in row)
    world.forgotten.update(made.call_id for _, made in world.calls)
    world.forgotten.update(writer.key for writer in world.writers)
    world.forgotten.update(f"said {number}" for number in range(world.number + 1))
    world.close_reader()
    backup.restore(world.path, world.copy)
    # These are asked about again.
    world.restored = dict(world.read("SELECT call_id, arguments_seq FROM calls WHERE state = 'held'"))
    world.close_reader()
    for side in ("", *SIDES):
        world.path.with_name(f"{before_restore(world.path).name}{side}").unlink(missing_ok=True)
    world.start()


async def cut(world: "World") -> None:
    server = _server(world)
    world.tell(f"the link of {server.agent.agent_id} breaks")
    await server.agent.drop()


async def silence(world: "World") -> None:
    """The connections of a server carry nothing more, and neither side is told."""
    name = world.random.choice(("old", "new", "new"))
    world.tell(f"the link of {name} falls silent")
    world.servers[name].silence()
    world.watch.silenced(name)


async def leave(world: "World") -> None:
    server = _server(world)
    world.tell(f"the server disconnects {server.agent.agent_id}")
    await server.agent.disconnect()


async def outage(world: "World") -> None:
    """A server or the backend is away for a while."""
    gone: Any = world.random.choice((*world.servers.values(), world.backend, world.backend))
    # Sometimes for longer than a runtime waits for a confirmation.
    seconds = world.random.choice((20, 20, 60)) * world.random.random() ** 2
    world.tell(f"{type(gone).__name__} is away for {seconds:.2f} s")
    gone.stop()
    world.disturb(seconds, loses=False)
    world.net.call_at(world.loop.now + seconds, gone.start)


async def partition(world: "World") -> None:
    """The network holds everything, or what goes to or from one instance, or between it and the store."""
    seconds = 8 * world.random.random() ** 2
    world.disturb(seconds)
    world.delay(2 * seconds)
    instance = world.random.choice(world.instances)
    process, engine = instance.process, instance.engine
    match world.random.choice(("all", "instance", "store")):
        case "instance" if process is not None and world.store is not None:
            world.tell(f"the network of {instance.name} holds everything for {seconds:.2f} s")
            world.net.isolated[process] = None
        case "store" if isinstance(engine, RemoteEngine):
            seconds *= 2
            world.tell(f"{instance.name} cannot reach the store for {seconds:.2f} s")
            engine.is_away = True
            world.disturb(seconds)
            world.net.call_at(world.loop.now + seconds, engine.reach)
            return
        case _:
            world.tell(f"the network holds everything for {seconds:.2f} s")
            world.net.partitioned = True
    world.net.call_at(world.loop.now + seconds, world.net.heal)


async def bad_disk(world: "World") -> None:
    disk = world.disk
    disk.refuses = world.random.choice((1.0, 0.3))
    seconds = 5 * world.random.random() ** 2
    world.tell(f"the disk refuses {disk.refuses:.0%} for {seconds:.2f} s")
    world.disk_refuses_until = world.loop.now + seconds
    world.delay(seconds)

    def heal() -> None:
        disk.refuses = 0.0

    world.net.call_at(world.loop.now + seconds, heal)


async def slow_disk(world: "World") -> None:
    """Writes begin late."""
    disk, seconds = world.disk, 10 * world.random.random()
    disk.slow = world.random.choice((0.3, 2.0))
    world.tell(f"the disk takes {disk.slow} s for {seconds:.2f} s")
    world.disturb(seconds + 3 * disk.slow)
    world.delay(seconds + 3 * disk.slow)

    def heal() -> None:
        disk.slow = 0.01

    world.net.call_at(world.loop.now + seconds, heal)


async def slow_store(world: "World") -> None:
    """What one instance asks its store, or what it answers, arrives late: after the end of a lease, too."""
    engine = world.random.choice(world.instances).engine
    if not isinstance(engine, RemoteEngine):
        return
    engine.slow = world.lease * world.random.choice((0.3, 1.0, 1.5))
    seconds = 5 * world.lease * world.random.random()
    world.tell(f"the store is {engine.slow:.1f} s away from an instance for {seconds:.2f} s")
    world.disturb(seconds + 3 * engine.slow)
    world.delay(seconds + 3 * engine.slow)

    def heal() -> None:
        engine.slow = 0.0

    world.net.call_at(world.loop.now + seconds, heal)


async def late_store(world: "World") -> None:
    """The store does at once what one instance asks, and answers shortly before a lease ends, while agents call."""
    engine = world.random.choice(world.instances).engine
    if not isinstance(engine, RemoteEngine):
        return
    engine.late = world.lease * (0.5 + 0.45 * world.random.random())
    seconds = world.lease * world.random.choice((1, 2, 4))
    world.tell(f"the store answers an instance after {engine.late:.1f} s, for {seconds:.0f} s")
    world.disturb(seconds + 2 * world.lease)
    world.delay(seconds + 2 * world.lease)

    def heal() -> None:
        engine.late = 0.0

    world.net.call_at(world.loop.now + seconds, heal)
    for _ in range(8):
        await call(world)
        await asyncio.sleep(seconds / 8)


async def hold_store(world: "World") -> None:
    """What the holder of a session asks its store arrives after its lease has ended, while its agent calls."""
    name = world.random.choice(("old", "new"))
    holder = (holders(world) or {}).get(name)
    engine = next((one.engine for one in world.instances if one.process is holder), None)
    if not isinstance(engine, RemoteEngine):
        return
    seconds = world.lease * (1 + 2 * world.random.random())
    world.tell(f"what the holder of {name} asks the store takes {seconds:.1f} s")
    engine.held_until = world.loop.now + seconds
    world.disturb(seconds + world.lease)
    world.delay(seconds + world.lease)
    for _ in range(world.random.choice((1, 4))):
        await call(world)
        await asyncio.sleep(0.1 * world.lease * world.random.random())


async def crowd(world: "World") -> None:
    """Held calls are allowed at once, and their routes change while some of them wait for a slot."""
    for _ in range(world.random.choice((0, 3))):
        await call(world)
        await asyncio.sleep(0.1)
    allow_waiting(world, world.random.choice(("allow", "edit")))
    await asyncio.sleep(world.random.choice((0.3, 1.0, 3.0)) * world.random.random())
    await surprise(world)


async def pause(world: "World") -> None:
    """SIGSTOP."""
    instance = world.random.choice(world.instances)
    process = instance.process
    if process is None:
        return
    seconds = 10 * world.random.random() ** 2
    world.tell(f"{instance.name} is stopped for {seconds:.2f} s")
    process.paused = True
    world.disturb(seconds)
    world.delay(seconds)
    world.net.call_at(world.loop.now + seconds, lambda: process.resume(world.loop))


async def kill(world: "World") -> None:
    """`kill -9`, at one of the next callbacks or between two of the next effects."""
    instance = world.random.choice(world.instances)
    process = instance.process
    if process is None or process.fuse is not None or process.effects is not None:
        return
    if world.random.random() < 0.5:
        process.fuse = world.random.choice((1, 3, 10, 30, 100, 300))
    else:
        process.effects = world.random.choice((1, 2, 3, 5, 10, 30))

    def burn() -> None:
        world.tell(f"{instance.name} is killed")
        world.disturb()
        instance.kill()
        seconds = 3 * world.random.random() ** 3
        if world.store is not None:
            # Beyond the lease, so that the other instance takes over.
            seconds *= 4
        world.net.call_at(world.loop.now + seconds, world.start)

    process.on_fuse = lambda: world.net.world.run(world.loop.call_soon, burn)


async def drain(world: "World") -> None:
    instance = world.random.choice(world.instances)
    if not instance.up:
        return
    for _ in range(world.random.choice((0, 3))):
        await call(world)
    world.tell(f"{instance.name} drains")
    world.disturb()
    instance.drain()
    process, began, until = instance.process, world.loop.now, world.loop.now + 200
    while instance.process is process and world.loop.now < until:
        await world.settle(0.1)
    world.disturbed.append((began, world.loop.now + 2, True))
    if instance.process is process:
        world.fail(10, f"the drain of {instance.name} does not end")
    world.start()


async def wait(world: "World") -> None:
    seconds = world.random.choice((0.01, 0.1, 1.0, 10.0)) * world.random.random()
    await asyncio.sleep(seconds)


STEPS: dict[Callable[["World"], Awaitable[None]], float] = {
    call: 60, repeat: 4, cancel: 6, talk: 8, garbage: 3, post: 8, follow: 6, order_cancel: 3,
    cut: 3, silence: 1, leave: 1, outage: 2, partition: 2,
    bad_disk: 3, slow_disk: 1, pause: 1, kill: 2, drain: 2, reload: 1,
    back_up: 2, restore_copy: 1, wait: 10,
}  # fmt: skip
"""The steps with their weights."""
QUIET_STEPS: dict[Callable[["World"], Awaitable[None]], float] = {
    call: 30, wait: 10, repeat: 2, cancel: 4, talk: 4, post: 4, follow: 4, order_cancel: 14,
    cut: 0.5, silence: 1, leave: 0.5, outage: 3, partition: 0.3,
    pause: 0.3, kill: 0.6, drain: 1, reload: 0.5,
}  # fmt: skip
"""Those of a world with little traffic."""
REPLICA_STEPS: dict[Callable[["World"], Awaitable[None]], float] = {slow_store: 4, late_store: 2, hold_store: 4}
"""Those of a world of replicas."""
GATED_STEPS: dict[Callable[["World"], Awaitable[None]], float] = {
    decide: 25, redrive: 2, reload: 2, surprise: 15, crowd: 6,
}  # fmt: skip
"""Those of a world in which people are asked, beside or instead of the others."""
RESTORING_STEPS: dict[Callable[["World"], Awaitable[None]], float] = {back_up: 6, restore_copy: 3}
"""Those of some of these worlds."""
USUAL = (call, talk, post, wait, order_cancel)
