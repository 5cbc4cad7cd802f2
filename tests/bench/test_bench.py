"""Whether the benchmark works, and sees calls that go wrong: tiny runs of the real thing. Speed is not judged."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

import pytest

from tests.bench import ab, load, page, soak, stages
from tests.bench.__main__ import main
from tests.bench.bench import copy_in_pages
from tests.bench.figures import QUANTILES, Measurement, Series, Spread, Workload
from tests.bench.load import Load, Order
from tests.bench.plot import Axis, Panel, draw
from tests.bench.processes import ROOT
from tests.bench.raw_floor import RawBackend, RawLink
from tests.bench.report import Report
from tests.bench.runtime import FakeRuntime
from tests.bench.steady import Steady
from tests.bench.targets import C1, C64, COMPARED, FLOORS, OTHER_GOALS, ROWS, VARIANTS, Goal, of_commit
from tests.bench.translation import Sample, measure as measure_translation, samples
from tests.bench.usage import cpu_seconds, look
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
        link.enter(f"{HOST}:{ports[0]}", "raw")
        await runtime.connected(["raw"], within=5)
        try:
            yield runtime, webhook
        finally:
            backend.close()
            runtime.agents["raw"].drop()


async def measure(*forms: tuple[bytes, bytes], grace: float = load.GRACE) -> dict[str, float]:
    """Run a load of a quarter of a second."""
    async with hosted(*forms) as (runtime, webhook):
        order = Order(["raw"], window=4, size=80, nested=True, seconds=0.25, warmup=0.01, pid=os.getpid())
        return await Load(runtime, webhook, order, grace=grace).run()


async def test_a_load_counts_one_right_result_for_each_call() -> None:
    said = await measure(RIGHT)
    assert said["calls"] > 0
    assert said["made"] == said["posts"]
    assert (said["lost"], said["doubled"], said["different"]) == (0, 0, 0)


async def test_an_open_loop_makes_calls_at_its_rate_and_times_them_from_when_they_were_due() -> None:
    async with hosted(RIGHT) as (runtime, webhook):
        order = Order(["raw"], 0, size=80, nested=True, seconds=0.5, warmup=0.1, pid=os.getpid(), rate=200)
        said = await Load(runtime, webhook, order).run()
    assert said["lost"] == 0
    assert 60 <= said["calls"] <= 140
    # A call that was made an interval late would take at least as long.
    assert said["quantiles"][0] < 1 / order.rate


async def test_a_load_sees_every_doubled_result() -> None:
    said = await measure(RIGHT, RIGHT)
    assert said["doubled"] == said["made"]


async def test_a_load_sees_every_wrong_result() -> None:
    said = await measure(WRONG)
    assert said["different"] == said["made"]


async def test_a_load_sees_every_lost_result() -> None:
    said = await measure(grace=0.05)
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
    target, before = tmp_path / "figures.json", page.PAGE.read_text()
    asked = ["--tiny", "--only", "T4,T5,T10,T14,T15,T18", "--old", str(ROOT), "--page"]
    assert main([*asked, "--json", str(target), "--folder", str(tmp_path)]) == 0
    written = json.loads(target.read_text())
    assert written["faults"] == 0
    for name, key in (
        ("T4", "c1"),
        ("T5", "c64"),
        ("T10", "burst"),
        ("T14", "chunk"),
        ("T15", "ready"),
        ("T18", "p99_half"),
    ):
        assert written[name][key] > 0
    old = written["old"][ROOT.name]
    assert min(old["T4"]["c1"], old["T5"]["c64"], old["T18"]["p50_quarter"]) > 0
    assert written["machine"]["fdatasync_p50_ms"] > 0
    many = {f"{name}, 16 sessions" for name in ("gateway", "best", ROOT.name)}
    assert {row["subject"] for row in written["figures"]} == {"gateway", "httpx", ROOT.name, *many}
    assert all(row["cpu_us_per_call"] > 10 for row in written["figures"])
    shown = capsys.readouterr().out
    assert "c1: p50 at 1 / httpx" in shown
    assert "Lost, doubled, different or repeated calls: 0." in shown
    # What was not measured in earnest is on no page.
    assert page.PAGE.read_text() == before


def test_each_look_belongs_to_the_innermost_stage_and_threads_that_wait_to_none() -> None:
    budget = stages.Budget(loop=90.0, others=20.0)
    loop = ("MainThread", "run (gateway/cli/commands.py:9)", "run (gateway/runtime/session/actor.py:1)")
    for looks, stack in (
        (1, (*loop, "settle (gateway/core/calls.py:5)", "sha (hashlib.py:3)")),
        (2, (*loop, "write (adapters/huma/v0_2.py:5)", "dumps (gateway/strict_json.py:8)")),
        (3, loop),
        (4, loop[:2]),
        (5, ("writer", "keep (gateway/store/sqlite/store.py:7)")),
        (1000, ("writer", f"{stages.IDLE[-1]}:7)")),
    ):
        budget.add(";".join(stack), looks)
    said = {stage: round(budget.of(stage)) for stage in (*stages.STAGES, stages.LOOP, stages.THREADS)}
    assert {stage: micros for stage, micros in said.items() if micros} == {
        "decisions": 9,
        "translation": 18,
        "inbox, steps, effects": 27,
        stages.LOOP: 36,
        stages.THREADS: 20,
    }
    assert budget.costliest("translation", 5) == [("write, adapters/huma/v0_2.py", 18.0)]


def test_threads_of_the_gateway_wait_where_the_stages_say() -> None:
    places = [place.split(" (") for place in stages.IDLE if " (gateway/" in place]
    assert places
    for name, path in places:
        assert f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.slow
def test_the_cost_of_a_call_is_told_by_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["--only", "T5,T14", "--seconds", "2", "--functions", "5", "--folder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for stage in (*stages.STAGES, stages.LOOP, stages.THREADS, "all"):
        assert stage in shown
    assert "gateway/core/" in shown


@pytest.mark.slow
def test_two_checkouts_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [str(ROOT), "--only", "T4", "--turns", "2", "--seconds", "0.3", "--folder", str(tmp_path)]
    assert ab.main(asked) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^1 in flight +CPU per call, µs .* [\d.]+ \([\d.]+-[\d.]+\)$", shown, re.MULTILINE)


def test_the_median_of_ever_more_turns_lies_between_two_of_them() -> None:
    # The tables for the sign test say: the 4th and the 12th of 15.
    assert ab.surely([float(number) for number in range(15, 0, -1)]) == Spread(8, 4, 12)
    assert ab.surely([3.0, 1.0, 2.0]) == Spread(2, 1, 3)


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.adapter.name)
def test_every_protocol_has_an_event_of_half_a_kilobyte_to_translate(sample: Sample) -> None:
    found = measure_translation(sample, seconds=0.05)
    assert 400 < found["bytes"] < 600
    assert 0 < found["json_alone"] < found["codec_alone"] < found["translation"]


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
    draw(tmp_path / "empty.png", [Panel("nothing", {"none": []})], Axis.times([], "min"), title="empty")
    assert (tmp_path / "empty.png").exists()


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("size", [80, 10_000, 60_000])
def test_arguments_are_about_as_long_as_asked(size: int, *, nested: bool) -> None:
    made = load.make_arguments(size, nested=nested)
    assert size <= len(made) <= size + 100
    assert len(json.loads(made).get("hands", ())) == {80: 1, 10_000: 96, 60_000: 568}[size] * nested


def test_processor_time_is_that_of_all_threads() -> None:
    def work() -> None:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass

    before, own = cpu_seconds(os.getpid()), time.process_time()
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(work) for _ in range(2)]:
            done.result()
        # While they are still there.
        used, passed = cpu_seconds(os.getpid()) - before, time.process_time() - own
    assert used == pytest.approx(passed, abs=0.02)
    assert used >= 0.2


def taken(cpu: float, rate: float) -> Measurement:
    """One repetition."""
    latencies = [0.001 * (1 + place) for place in range(len(QUANTILES))]
    kept = {"made": 10, "lost": 0, "doubled": 0, "different": 0, "posts": 10, "signed": 10, "calls": 10, "rss": 1}
    return Measurement(
        **kept,
        rate=rate,
        p50=0.01,
        p99=0.02,
        quantiles=latencies,
        cpu=cpu,
        written=6e3,
        writes=2.0,
        busy=1,
        peers_busy=0,
    )


@pytest.mark.slow
def test_a_core_that_another_process_uses_stalls() -> None:
    core = min(os.sched_getaffinity(0))
    pinned = f"import os; os.sched_setaffinity(0, {{{core}}})"
    other = subprocess.Popen([sys.executable, "-c", f"{pinned}\nwhile True: pass"])
    try:
        measure = f"{pinned}\nfrom tests.bench.machine import measure_stalls\nprint(measure_stalls())"
        said = subprocess.run([sys.executable, "-c", measure], cwd=ROOT, check=True, capture_output=True, text=True)
    finally:
        other.kill()
        other.wait()
    assert float(said.stdout) > 0.1


def test_a_write_to_a_copied_database_counts_as_one_page(tmp_path: Path) -> None:
    stored, copied, writes = tmp_path / "stored", tmp_path / "copied", 200
    stored.write_bytes(os.urandom(16 * 1024 * 1024))
    copy_in_pages(stored, copied)
    assert copied.read_bytes() == stored.read_bytes()
    with copied.open("r+b", buffering=0) as file:
        os.fsync(file)
        before = look(os.getpid()).written
        for number in range(writes):
            os.pwrite(file.fileno(), b"x", number * 64 * 1024)
        assert look(os.getpid()).written - before < 2 * writes * 4096


def report_of(*loads: Workload) -> Report:
    """Report loads in which a call costs the gateway a tenth of what it costs the others, and an old one a fifth."""
    report = Report(
        {"cores": 2, "pinned": True, "python": "3.11", "sqlite": "3.40", "load_before": 0.0}
        | dict.fromkeys(("fdatasync_p50_ms", "fdatasync_p50_ms_after"), 0.1)
        | {"stalled_before": 0.0, "stalled_after": 0.02},
        commits=("old",),
    )
    costs = dict.fromkeys(FLOORS, 10) | {of_commit(name, "old"): 2 for name in VARIANTS} | dict.fromkeys(VARIANTS, 1)
    for load_ in loads:
        series = Series(load_)
        for name, cost in costs.items():
            for turn in range(3):
                series.add(name, taken(1e-4 * cost, 1000.0 + turn))
        report.add_series(series)
        report.judge_loads(series, [row for row in ROWS if row.workload == load_])
    return report


def test_a_row_is_the_median_of_its_turns_and_judged_by_its_goal() -> None:
    written = report_of(C1, C64).document()
    assert written["T5"]["c64"] == written["T21"]["c1"] == pytest.approx(0.1)
    assert (written["T13"]["c64_256"], written["T19"]["fresh"]) == (6.0, 2.0)
    met = {(row["name"], row["key"]): row["met"] for row in written["judged"]}
    assert (met["T5", "c64"], met["T13", "c64_256"], met["T4", "c1"]) == ("stretch", "stretch", "stretch")
    # Throughput does not decide.
    assert met["T1", "c64"] == ""


def test_rows_of_an_earlier_commit_stand_beside_those_that_are_compared() -> None:
    written = report_of(C1, C64).document()
    assert written["old"]["old"]["T5m"] == {"c64_16": 0.2, "c64_256": 0.2}
    assert written["old"]["old"].keys() == {"T4", "T5", "T5m", "T21"}


@pytest.mark.parametrize(("value", "met"), [(2.4, "stretch"), (2.5, "yes"), (3.0, "yes"), (3.1, "no")])
def test_a_value_meets_a_goal_up_to_its_bounds(value: float, met: str) -> None:
    assert Goal(3, 2.4, "less").judge(value) == met
    assert Goal(-3, -2.4, "more").judge(-value) == met
    assert Goal(3, None, "less").judge(value) == met.replace("stretch", "yes")


def complete_report() -> Report:
    """Report all rows."""
    report = report_of(*dict.fromkeys(row.workload for row in ROWS))
    for name, key in OTHER_GOALS:
        report.judge(name, key, [1.0, 3.0, 2.0], {"old": [4.0]} if name in COMPARED else None)
    return report


def test_the_page_shows_every_row_and_replaces_what_it_showed_before() -> None:
    report = complete_report()
    assert report.complete
    blank = f"Words.\n\n{page.BEGIN}\n{page.END}\n\nMore words.\n"
    text = page.page_of(page.page_of(blank, report_of(C1)), report)
    assert text == page.page_of(blank, report)
    assert text.startswith("Words.\n")
    assert text.endswith("\n\nMore words.\n")
    assert "stalls of an idle core 0.0% of the time before and 2.0% after." in text.replace("\n", " ")
    goals = {(row.name, row.what): row.goal for row in ROWS}
    goals |= {(name, what): goal for (name, _), (what, goal) in OTHER_GOALS.items()}
    rows = page.rows_of(text, page.GOALS)
    assert sorted(row[:2] for row in rows) == sorted(goals)
    for name, what, must, stretch, value, turns, met in rows:
        goal = goals[name, what]
        assert (must, stretch) == (goal.bounds if goal else ("", ""))
        assert met == (goal.judge(float(value.partition(" ")[0])) if goal else "")
        assert int(turns) == 3
    assert page.verdict(rows) in text
    names = list(dict.fromkeys(row[0] for row in rows))
    assert names[:6] == ["T1", "T4", "T5", "T5m", "T7", "T8"]
    assert names[-1] == "T24"
    beside = page.rows_of(text, ("#", "measure", "old", "now"))
    assert {row[0] for row in beside} == COMPARED
    assert ("T22", OTHER_GOALS["T22", "ready"][0], "4 (4-4)", "2 (1-3)") in beside
    loads = page.rows_of(text, page.LOADS)
    assert {workload for workload, *_ in loads} == {row.workload.name for row in ROWS}


def test_a_report_without_one_row_is_not_complete() -> None:
    report = complete_report()
    report.judged.pop()
    assert not report.complete


def test_the_page_has_the_tables_of_a_run() -> None:
    text = page.PAGE.read_text()
    assert page.rows_of(text, page.GOALS)
    assert page.rows_of(text, page.LOADS)
    assert page.page_of(text, complete_report()) != text
