"""A command's error ends in a fix for a terminal, never in one for callers of the API."""

import re

import pytest

from dragoman.client import RequestRefused
from dragoman.models.responses import Problem
from gateway.cli.connection import explain_error
from gateway.http.errors import PROBLEMS

API = re.compile(
    r"\b(GET|POST|PUT|DELETE) /|`(detail|pointer|errors|first_sequence|after|Allow|Retry-After|Origin)`"
    r"|Content-|Idempotency-Key|openapi\.json|Authorization"
)


@pytest.mark.parametrize("problem", sorted(PROBLEMS))
def test_no_fix_of_a_command_speaks_of_the_api(problem: str) -> None:
    kind = PROBLEMS[problem]
    given = {"type": f"/problems/{problem}", "title": kind.title, "status": kind.status, "detail": "it failed"}
    refused = RequestRefused(Problem.model_validate({**given, "instance": "i"}), status=kind.status)
    refusal = explain_error(refused, "http://127.0.0.1:8080")
    assert API.search(refusal.fix) is None, refusal.fix
