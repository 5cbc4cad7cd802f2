"""What is to be reached (T1-T12), which workloads and floors each of them needs, and how a ratio is judged. Pure."""

from dataclasses import dataclass
from typing import Literal

from tests.bench import figures
from tests.bench.figures import Metric, Workload

C1 = Workload("1 in flight", 1)
C16 = Workload("16 in flight", 16)
C64 = Workload("64 in flight", 64)
MANY = Workload("64 in flight over 256 sessions", 64, sessions=256)
C256 = Workload("256 in flight", 256)
TEN_KB = Workload("10 KB nested, 64 in flight", 64, size=10_000)
SIXTY_KB = Workload("60 KB nested, 16 in flight", 16, size=60_000)
DELAYED = Workload("executor takes 20 ms, 64 in flight", 64, delay=0.02)


@dataclass(frozen=True, slots=True)
class Goal:
    """One number to reach."""

    target: float
    stretch: float
    better: Literal["more", "less"] = "more"

    def judge(self, value: float) -> str:
        """Say whether a value reaches it."""
        sign = 1 if self.better == "more" else -1
        if sign * value >= sign * self.stretch:
            return "stretch"
        return "reached" if sign * value >= sign * self.target else "missed"

    def __str__(self) -> str:
        sign = "≥" if self.better == "more" else "≤"
        return f"{sign} {figures.digits(self.target)} ({sign} {figures.digits(self.stretch)})"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The gateway beside a floor under one workload."""

    name: str
    """T1 … T8."""
    key: str
    """Its name in the JSON."""
    what: str
    workload: Workload
    metric: Metric
    floor: str
    goal: Goal


RATIOS = (
    Ratio("T1", "c64", "throughput / direct httpx", C64, figures.rate, "httpx", Goal(6, 9)),
    Ratio("T1", "c256", "throughput / direct httpx", C256, figures.rate, "httpx", Goal(6, 9)),
    Ratio("T2", "c64", "throughput / best direct", C64, figures.rate, "best", Goal(0.9, 1.15)),
    Ratio("T3", "c16_httpx", "throughput / direct httpx", C16, figures.rate, "httpx", Goal(3.5, 5)),
    Ratio("T3", "c16_best", "throughput / best direct", C16, figures.rate, "best", Goal(0.6, 0.85)),
    Ratio("T4", "c1", "p50 / direct httpx", C1, figures.p50, "httpx", Goal(1.1, 0.95, "less")),
    Ratio("T5", "c64", "CPU per call / direct httpx", C64, figures.cpu, "httpx", Goal(0.17, 0.12, "less")),
    Ratio("T6", "c64", "throughput / Node + undici", C64, figures.rate, "node", Goal(0.3, 0.5)),
    Ratio("T7", "10KB_c64", "throughput / direct httpx", TEN_KB, figures.rate, "httpx", Goal(4, 5)),
    Ratio("T7", "60KB_c16", "throughput / direct httpx", SIXTY_KB, figures.rate, "httpx", Goal(2.3, 3.5)),
    Ratio("T8", "p50", "p50 / best direct", DELAYED, figures.p50, "best", Goal(1.15, 1.05, "less")),
)
