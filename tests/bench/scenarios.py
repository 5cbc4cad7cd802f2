"""What is measured under which name."""

from collections.abc import Awaitable, Callable, Mapping

from tests.bench.bench import Bench
from tests.bench.report import Report
from tests.bench.targets import RATIOS

Scenario = Callable[[Bench, Report], Awaitable[None]]


def _ratios(name: str) -> Scenario:
    own = [ratio for ratio in RATIOS if ratio.name == name]

    async def scenario(bench: Bench, report: Report) -> None:
        for ratio in own:
            # All floors that any target wants under this workload are run together, in turn.
            floors = {other.floor for other in RATIOS if other.workload == ratio.workload}
            series = await bench.compare(ratio.workload, floors)
            value = series.ratio(ratio.metric, ratio.floor)
            if value is not None:
                report.judge(name, ratio.key, what=ratio.what, value=value, goal=ratio.goal)

    scenario.__doc__ = "; ".join(f"{ratio.workload.name}: {ratio.what}" for ratio in own)
    return scenario


SCENARIOS: Mapping[str, Scenario] = {
    **{name: _ratios(name) for name in ("T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8")},
}
"""By the name that `--only` takes."""
