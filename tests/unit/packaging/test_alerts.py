"""The alerting rules name metrics that exist, and say what each alert means and what to do."""

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.runtime.metrics import Metrics
from gateway.runtime.views import ConditionKind
from tests.readme.pages import ROOT, anchors

SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
FILE = Path(__file__).parents[3] / "config/alerts.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]


def _published() -> dict[str, set[str]]:
    """Every name a sample can have, with its labels."""
    metrics = Metrics(version="0", runtimes=["finn"], tools=["ask"], executors=["cards"], adapters=["huma-0.2"])
    metrics.link("finn", up=True)
    metrics.outbox_oldest("finn", 1.0)
    metrics.call_settled("finn", "ask", outcome="success", seconds=0.1)
    metrics.commit(0.001)
    metrics.breaker("cards", "open")
    metrics.conditions({})
    families = text_string_to_metric_families(metrics.render().decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_there_is_an_alert_for_each_thing_that_needs_a_person() -> None:
    assert {rule["alert"] for rule in RULES} == {
        "DragomanLinkDown",
        "DragomanOutboxOld",
        "DragomanDeadLetters",
        "DragomanBreakerOpen",
        "DragomanExecutorRefuses",
        "DragomanDown",
        "DragomanPartFails",
        "DragomanCallsFailing",
        "DragomanInboxWaits",
        "DragomanUnknownOutcomes",
        "DragomanLeaseLost",
        "DragomanLeaseRunsOut",
        "DragomanForwardsFail",
        "DragomanCommitsSlow",
        "DragomanDiskNearlyFull",
        "DragomanFilesRunOut",
    }


def test_each_condition_that_needs_an_operator_has_an_alert() -> None:
    covered = {"link": "DragomanLinkDown", "executor": "DragomanBreakerOpen"}
    [rest] = [rule["expr"] for rule in RULES if rule["alert"] == "DragomanPartFails"]
    assert {*covered, *re.findall(r"\w+", rest.partition("=~")[2].partition("}")[0])} == {*get_args(ConditionKind)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_about_metrics_that_exist(rule: dict[str, Any]) -> None:
    named = set(re.findall(r"\b(?:dragoman|process)_\w+", rule["expr"]))
    assert named
    assert named <= _published().keys()


def test_an_alert_on_an_increase_sees_the_first_of_them_too() -> None:
    """`increase` begins with the first sample of a series, whatever it was; so that has to be 0."""
    metrics = Metrics(version="0", executors=["cards"])
    page = metrics.render().decode()
    counted = {name for rule in RULES for name in re.findall(r"increase\((\w+)", rule["expr"])}
    assert counted
    for name in counted:
        assert re.search(rf"^{name}(\{{.*\}})? 0\.0$", page, re.MULTILINE), name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    for part in ("summary", "meaning", "action"):
        assert len(rule["annotations"][part]) > 15
    page, _, heading = rule["annotations"]["runbook_url"].partition("#")
    assert page == f"{SOURCE}/blob/main/config/README.md"
    assert heading in anchors("config/README.md")
    for expression in re.findall(r"{{(.*?)}}", " ".join(rule["annotations"].values())):
        assert re.fullmatch(r" \$(value( \| humanize\w*)?|labels\.\w+) ", expression)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_label_that_an_alert_shows_belongs_to_its_metric(rule: dict[str, Any]) -> None:
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    published = _published()
    named = re.findall(r"\b(?:dragoman|process)_\w+", rule["expr"])
    assert all(shown <= published[name] for name in named)


def test_an_alert_about_calls_or_sessions_names_the_page_that_shows_them() -> None:
    pages = {rule["alert"]: rule["annotations"]["page"] for rule in RULES if "page" in rule["annotations"]}
    assert pages == {
        "DragomanLinkDown": "/ui/sessions",
        "DragomanOutboxOld": "/ui/sessions",
        "DragomanDeadLetters": "/ui/dead-letters",
        "DragomanBreakerOpen": "/ui/dead-letters",
        "DragomanExecutorRefuses": "/ui",
        "DragomanCallsFailing": "/ui/calls?state=failed",
        "DragomanInboxWaits": "/ui/inbox",
        "DragomanPartFails": "/ui",
        "DragomanUnknownOutcomes": "/ui/calls?state=unknown",
    }
