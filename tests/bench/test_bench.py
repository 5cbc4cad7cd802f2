"""Whether the benchmark works, and sees calls that go wrong: tiny runs of the real thing. Speed is not judged."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

import pytest

from tests.bench import load, soak
from tests.bench.__main__ import main
from tests.bench.load import Load, Order
from tests.bench.plot import Panel, draw
from tests.bench.raw_floor import RawBackend, RawLink
from tests.bench.runtime import FakeRuntime
from tests.bench.steady import Steady
from tests.bench.translation import Sample, measure as measure_translation, samples
from tests.bench.webhook import Webhook

HOST = "127.0.0.1"


class SloppyLink(RawLink):
    """A host that sends each result in the forms it is given."""

    def __init__(self, backend: RawBackend, forms: tuple[tuple[bytes, bytes], ...]) -> None:
        super().__init__(backend)
        self._forms = forms

    def send(self, packet: bytes) -> None:
        if not packet.startswith(b"42"):
            super().send(packet)
            return
        for old, new in self._forms:
            super().send(packet.replace(old, new))


RIGHT = (b"", b"")
WRONG = (b'"cards":3', b'"cards":4')


@asynccontextmanager
async def hosted(*forms: tuple[bytes, bytes]) -> AsyncGenerator[tuple[FakeRuntime, Webhook]]:
    """Serve the fast peers in this process, with a host that answers in these forms."""
    loop = asyncio.get_running_loop()
    runtime, webhook = FakeRuntime(), Webhook()
    async with (
        await loop.create_server(runtime.connect, HOST, 0) as huma,
        await loop.create_server(webhook.connect, HOST, 0) as hook,
    ):
        ports = [server.sockets[0].getsockname()[1] for server in (huma, hook)]
        backend = RawBackend(f"http://{HOST}:{ports[1]}/tools")
        _, link = await loop.create_connection(lambda: SloppyLink(backend, forms), HOST, ports[0])
        link.enter(f"{HOST}:{ports[0]}")
        await runtime.connected(["raw"], within=5)
        try:
            yield runtime, webhook
        finally:
            backend.close()
            runtime.agents["raw"].drop()


async def measure(*forms: tuple[bytes, bytes]) -> dict[str, float]:
    """Run a load of a quarter of a second."""
    async with hosted(*forms) as (runtime, webhook):
        order = Order(["raw"], window=4, size=80, nested=True, seconds=0.25, warmup=0.01, pid=os.getpid())
        return await Load(runtime, webhook, order).run()


async def test_a_load_counts_one_right_result_for_each_call() -> None:
    said = await measure(RIGHT)
    assert said["calls"] > 0
    assert said["made"] == said["posts"]
    assert (said["lost"], said["doubled"], said["different"]) == (0, 0, 0)


async def test_a_load_sees_every_doubled_result() -> None:
    said = await measure(RIGHT, RIGHT)
    assert said["doubled"] == said["made"]


async def test_a_load_sees_every_wrong_result() -> None:
    said = await measure(WRONG)
    assert said["different"] == said["made"]


async def test_a_load_sees_every_lost_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "GRACE", 0.05)
    said = await measure()
    assert said["lost"] == said["made"] == 4


async def test_a_steady_load_tells_repeats_in_other_words_from_doubles() -> None:
    for forms, name in (((RIGHT, RIGHT), "doubled"), ((RIGHT, WRONG), "different")):
        async with hosted(*forms) as (runtime, webhook):
            webhook.delays = cycle([0.0])
            steady = Steady(runtime, agents=["raw"], rate=500.0, size=80)
            steady.start()
            async with asyncio.timeout(5):
                # Results set no event for each of them.
                while steady.look()["answered"] < 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            said = await steady.stop()
        assert said["lost"] == 0
        assert said[name] == said["made"], said


@pytest.mark.slow
def test_the_benchmark_writes_its_figures_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figures.json"
    assert main(["--tiny", "--only", "T4,T10", "--json", str(target), "--folder", str(tmp_path)]) == 0
    written = json.loads(target.read_text())
    assert written["faults"] == 0
    assert written["T4"]["c1"] > 0
    assert written["T10"]["burst"] > 0
    assert written["machine"]["fdatasync_p50_ms"] > 0
    assert {row["subject"] for row in written["figures"]} == {"gateway", "httpx"}
    shown = capsys.readouterr().out
    assert "c1: p50 / direct httpx" in shown
    assert "Lost, doubled, different or repeated calls: 0." in shown


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.adapter.name)
def test_every_protocol_has_an_event_of_half_a_kilobyte_to_translate(sample: Sample) -> None:
    found = measure_translation(sample, seconds=0.05)
    assert 400 < found["bytes"] < 600
    assert min(found["alone"], found["with_json"]) > 0


def test_a_name_that_no_scenario_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "T99"]) == 2
    assert "T99" in capsys.readouterr().err


@pytest.mark.slow
def test_a_soak_breaks_links_without_losing_a_call_and_draws_what_it_saw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, picture = tmp_path / "soak.json", tmp_path / "soak.png"
    asked = ["--minutes", "0.07", "--json", str(figures), "--plot", str(picture), "--folder", str(tmp_path)]
    assert soak.main(asked) == 0
    found = json.loads(figures.read_text())
    assert found["calls"]["drops"] > 0
    assert found["calls"]["made"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "too short to say whether it is flat" in capsys.readouterr().out


@pytest.mark.parametrize(("last", "flat"), [(101.0, True), (110.0, False)])
def test_growth_after_the_warm_up_is_not_flat(last: float, *, flat: bool) -> None:
    names = ("sockets", "files", "threads", "tasks", "events")
    samples = [
        {"at": at, "rss_mib": 50.0 if at < 300 else last if at > 800 else 100.0, **dict.fromkeys(names, 5)}
        for at in range(0, 1000, 10)
    ]
    verdict = soak.judge(samples, 1000)
    assert verdict["flat"] is flat
    assert verdict["long_enough"]


def test_a_picture_of_nothing_can_be_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "empty.png", [Panel("nothing", {"none": []})], times=[], unit="min", title="empty")
    assert (tmp_path / "empty.png").exists()
