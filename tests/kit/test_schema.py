"""What agents are told of a tool is said as plainly as flat runtimes want it, and what cannot be is refused."""

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import jsonschema_rs
import pytest
import yaml
from pydantic import BaseModel, Field

from dragoman.kit.schema import parameters_of
from gateway.adapter.port import Tool
from gateway.core.arguments import ArgumentValidator
from gateway.links.flat_tools import flatten
from tests.readme.pages import block

ROOT = Path(__file__).parents[2]


class Suit(StrEnum):
    HEARTS = "hearts"
    SPADES = "spades"


class Card(BaseModel):
    rank: Annotated[str, Field(description="Two to ace.")]
    suit: Suit | None = None


class Hand(BaseModel):
    """A hand, with all that models like to say."""

    title: str = "mine"
    cards: list[Card]
    best: Card | None = None
    how: Literal["open", "closed"] = "open"
    either: Card | str | None = None
    named: dict[str, Card] = {}


class Flat(BaseModel):
    rank: str = Field(description="Which rank.")
    player: str | None = Field(None, description="Whom to ask.")
    count: float = 1
    loud: bool = False


class Tree(BaseModel):
    branches: list["Tree"] = []


def test_a_schema_has_no_references_no_null_and_no_titles() -> None:
    schema = parameters_of(Hand)
    text = str(schema)
    assert not any(word in text for word in ("$ref", "$defs", "'null'", "'title': '", "'default': None"))
    assert list(schema["properties"]) == ["title", "cards", "best", "how", "either", "named"]
    assert schema["properties"]["best"]["properties"]["suit"]["enum"] == ["hearts", "spades"]
    assert schema["properties"]["either"] == {"anyOf": [schema["properties"]["best"], {"type": "string"}]}
    assert schema["required"] == ["cards"]
    good = {"cards": [{"rank": "7"}], "either": "x", "named": {"a": {"rank": "8", "suit": "hearts"}}, "title": "t"}
    jsonschema_rs.validate(schema, good)
    Hand.model_validate(good)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {"cards": [{"rank": "7", "suit": "stars"}]})


class Nullable(BaseModel):
    needed: str | None
    deck: int | None = 52
    made: str | None = Field(default_factory=lambda: "x")
    left_out: str | None = None
    suit: Suit | None
    texts: list[str | None] = []
    named: dict[str, int | None] = {}


def test_null_stays_where_leaving_out_means_something_else() -> None:
    schema = parameters_of(Nullable)
    properties = schema["properties"]
    assert properties["needed"] == {"type": ["string", "null"]}
    assert properties["deck"] == {"type": ["integer", "null"], "default": 52}
    assert properties["made"]["type"] == ["string", "null"]
    assert properties["left_out"] == {"type": "string"}
    assert properties["texts"]["items"] == {"type": ["string", "null"]}
    assert properties["named"]["additionalProperties"] == {"type": ["integer", "null"]}
    given = {"needed": None, "deck": None, "suit": None, "texts": [None], "named": {"a": None}}
    jsonschema_rs.validate(schema, given)
    assert Nullable.model_validate(given).deck is None
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {"needed": None, "suit": "stars"})


def test_a_null_for_an_optional_argument_means_the_same_to_the_gateway_and_to_the_model() -> None:
    given = {"cards": [{"rank": "7", "suit": None}], "best": None, "either": None}
    fitted = ArgumentValidator({"t": Tool("t", "", parameters_of(Hand))}).fit("t", given)
    assert fitted.problem is None
    assert len(fitted.losses) == 3
    assert Hand.model_validate(dict(fitted.arguments)) == Hand.model_validate(given)


def test_a_plain_model_loses_nothing_in_flat_words() -> None:
    flat = flatten(Tool("t", "", parameters_of(Flat)))
    assert [loss for loss in flat.losses if "default" not in loss.path] == []


def test_a_model_that_holds_itself_is_refused_with_its_name() -> None:
    with pytest.raises(ValueError, match="Tree contains itself"):
        parameters_of(Tree)


def run_tools(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", "tools", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"CARDS_SECRET": "whsec_dHdlbnR5LWZvdXItYnl0ZXMtb3ItbW9yZQ==", "PYTHONPATH": str(ROOT)},
    )


def test_the_command_writes_what_the_first_page_shows_and_flat_runtimes_lose_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(block("README.md", "python", "dragoman.kit"))
    done = run_tools(tmp_path, "--from", "backend:tools")
    assert (done.returncode, done.stderr) == (0, "")
    shown = yaml.safe_load(done.stdout)["tools"]
    assert shown == yaml.safe_load(block("README.md", "yaml", "ask_for_cards"))["tools"]
    for name, said in shown.items():
        assert flatten(Tool(name, said["description"], said["parameters"])).losses == ()


REFUSED = """
from pydantic import BaseModel, Field

from dragoman.kit import Tools


class Nothing(BaseModel):
    pass


class Sized(BaseModel):
    size: int = Field(alias="größe")


tools = Tools(secret="whsec_dHdlbnR5LWZvdXItYnl0ZXMtb3ItbW9yZQ==")


async def run(arguments: Nothing) -> str:
    return ""


async def measure(arguments: Sized) -> str:
    return ""


tools.tool("fine", description="Does it.")(run)
for number in range(100):
    tools.tool(f"t{number}", description="Does it.")(measure)
"""


def test_the_command_warns_of_tools_that_model_apis_refuse(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(REFUSED, encoding="utf-8")
    done = run_tools(tmp_path, "--from", "backend:tools")
    assert done.returncode == 0, done.stderr
    assert len(yaml.safe_load(done.stdout)["tools"]) == 101
    told = " ".join(done.stderr.split())
    assert "backend:tools: warning: tools.t0" in told
    assert "größe" in told
    assert "(and 95 more like this)" in told
    assert "tools.fine" not in told
    assert len(done.stderr.splitlines()) <= 10


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("backend", 2, "MODULE:NAME"),
        ("os.path;x:y", 2, "MODULE:NAME"),
        ("nowhere:tools", 1, "No module named 'nowhere'"),
        ("backend:other", 1, "backend.other is not a Tools object"),
        ("broken:tools", 1, "RuntimeError: no database"),
        ("bare:tools", 1, 'TypeError: the name of the tool is missing: write @tools.tool("ask")'),
        ("empty:tools", 1, "empty.tools declares no tools"),
    ],
)
def test_what_declares_no_tools_is_said_with_the_mend(tmp_path: Path, source: str, code: int, words: str) -> None:
    (tmp_path / "backend.py").write_text("tools = 7\n")
    (tmp_path / "broken.py").write_text("raise RuntimeError('no database')\n")
    made = "from dragoman.kit import Tools\ntools = Tools(secret='whsec_dHdlbnR5LWZvdXItYnl0ZXMtb3ItbW9yZQ==')\n"
    (tmp_path / "empty.py").write_text(made)
    (tmp_path / "bare.py").write_text(f"{made}@tools.tool\nasync def ask(arguments): ...\n")
    done = run_tools(tmp_path, "--from", source)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
