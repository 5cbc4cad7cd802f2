"""Notifications from somebody else as well: everything twice, in another order, thousands of times, and nonsense.

They carry no truth, so nobody who follows may see more, less or anything else for it, and no call may wait for it.
"""

import json
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.faults.environment import until
from tests.faults.followers import Followers
from tests.faults.instance import Instance
from tests.faults.load import Load
from tests.faults.scene import Scene
from tests.faults.test_replicas import environment
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults

ROUNDS, ROUND = 40, 500
FOLLOWERS = 20
TOGETHER = 10
"""Notifications in one transaction."""
GROWTH = 16 * 1024**2
"""Bytes that a gateway may grow by in a flood; what is notified comes to more."""
LONGEST = 7_900
"""Characters that a notification may have."""

NONSENSE = [
    "",
    "ring",
    "null",
    "17",
    "[]",
    '["somebody"]',
    '["somebody", null]',
    '["somebody", 17]',
    '{"somebody": 1, "topics": 2}',
    '["somebody", [null, 17, {}, [], true]]',
    '["somebody", ["", ":", "session", "session:", "live:", "live::", "what:is,this"]]',
    json.dumps(["somebody", ["orphans:" + ",".join(f"nobody-{number}" for number in range(500))]]),
    json.dumps(["somebody", ["orphans:a\0b,\N{GRINNING FACE}"]]),
    json.dumps(["somebody", ["interaction:" + ",".join(f"none-{number}" for number in range(500))]]),
    json.dumps(["somebody", ["follow:" + ",".join(f"none-{number}" for number in range(500)), "copies:log,none"]]),
    f'["somebody", {"[" * 1_000}{"]" * 1_000}]',
    f'["somebody", [{"[" * 1_000}{"]" * 1_000}]]',
    '["somebody", ' + "[" * 3_000,
    "x" * LONGEST,
]


class Stranger:
    """Somebody else on the channel of the gateways, who has heard what they notify."""

    def __init__(self, ear: "asyncpg.Connection[Any]", mouth: "asyncpg.Connection[Any]", channel: str) -> None:
        self._ear, self._mouth = ear, mouth
        self._channel = channel
        self._jitter = random.Random(5)
        self.heard: list[str] = []
        """What the gateways have notified."""
        self.sent = 0
        """How many notifications of its own have reached everybody, and how many characters they had."""
        self.characters = 0

    async def listen(self) -> None:
        await self._ear.add_listener(self._channel, self._hear)

    async def notify(self, nonsense: Sequence[str]) -> None:
        """Send once more what was heard, the newest twice, all of it in no order, and nonsense between."""
        jitter = self._jitter
        again = jitter.choices(self.heard, k=ROUND // 4) + 2 * self.heard[-ROUND // 10 :]
        fresh = [jitter.randbytes(LONGEST // 2).hex() for _ in range(ROUND // 4)]
        payloads = [*again, *fresh, *jitter.choices(nonsense, k=ROUND - len(again) - len(fresh))]
        jitter.shuffle(payloads)
        for start in range(0, ROUND, TOGETHER):
            # What comes twice in one transaction is sent once.
            some = payloads[start : start + TOGETHER]
            await self._mouth.execute("SELECT pg_notify($1, one) FROM unnest($2::text[]) one", self._channel, some)

    def _hear(self, _connection: object, pid: object, _channel: object, payload: object) -> None:
        if pid == self._mouth.get_server_pid():
            self.sent += 1
            self.characters += len(str(payload))
        else:
            self.heard.append(str(payload))


@asynccontextmanager
async def stranger(scene: Scene) -> AsyncGenerator[Stranger]:
    """Join the channel of a scene's gateways."""
    place = scene.store.settings
    ear, mouth = await asyncpg.connect(place["dsn"]), await asyncpg.connect(place["dsn"])
    try:
        made = Stranger(ear, mouth, f"dragoman:{place['schema']}")
        await made.listen()
        yield made
    finally:
        await ear.close()
        await mouth.close()


@pytest.mark.fault(
    "Notifications repeated, reordered and flooded",
    on="replicas",
)
async def test_notifications_of_a_stranger_change_nothing_for_anybody(tmp_path: Path) -> None:
    async with environment(tmp_path, "0.2") as both, stranger(both.scene) as other:
        scene = both.scene
        await scene.ask("once", within=PATIENCE)
        session_id = await scene.session_id()
        kinds = ("session", "follow", "orphans", "live", "interaction")
        nonsense = [*NONSENSE, *(json.dumps(["somebody", [f"{kind}:{session_id}"]]) for kind in kinds)]
        async with (
            Followers(both.owner.port, session_id, after=0, many=FOLLOWERS) as here,
            Followers(both.other.port, session_id, after=0, many=FOLLOWERS) as there,
        ):
            async with Load(scene) as load:
                await load.more(50)
                before = [memory(instance) for instance in both.all]
                grown = 0
                for _ in range(ROUNDS):
                    await other.notify(nonsense)
                    await load.more(1)
                    grown = max(grown, *(memory(one) - was for one, was in zip(both.all, before, strict=True)))
            await scene.settled()

            async def all_there() -> bool:
                last = int((await scene.rows(f"/v1/sessions/{session_id}/events"))[-1]["sequence"])
                return here.places == there.places == (last, last)

            await until(all_there)
            assert here.faults == there.faults == []
        assert other.sent > 10_000
        assert other.characters > GROWTH > grown
        for instance in both.all:
            assert "Exception" not in instance.whole_log()
        await both.finish()


def memory(instance: Instance) -> int:
    """What a gateway has in memory, in bytes."""
    status = Path(f"/proc/{instance.pid}/status").read_text()
    return 1_024 * int(status.partition("VmRSS:")[2].split()[0])
