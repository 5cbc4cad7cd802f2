"""What executors send back of the secrets that were sent to them: masked in errors, counted in results."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import structlog

from gateway.executors.port import Answered
from gateway.executors.webhook.sent import sent_to
from gateway.hidden import Hidden
from gateway.runtime.masking import is_registered
from gateway.runtime.metrics import Metrics
from gateway.settings.model import ExecutorSpec, WebhookSpec

log = structlog.get_logger(__name__)


class Quotes:
    """Looks through outcomes, however they came."""

    def __init__(self, metrics: Metrics, executors: Mapping[str, ExecutorSpec]) -> None:
        self._metrics = metrics
        self._sent: Mapping[str, Hidden] = {}
        self._secret: Mapping[str, Hidden] = {}
        self._noted: set[str] = set()
        """Executors of which it was logged that they tell secrets back."""
        self.configure(executors)

    def configure(self, executors: Mapping[str, ExecutorSpec]) -> None:
        """Look for what is sent to these executors from now on."""
        self._sent = {
            name: sent_to(spec.url, spec.secret, spec.headers)
            for name, spec in executors.items()
            if isinstance(spec, WebhookSpec)
        }
        self._secret = {
            name: Hidden(value for value in sent.texts if is_registered(value)) for name, sent in self._sent.items()
        }

    def look_through(self, executor: str, answer: Answered) -> Answered:
        """Mask the error of an outcome; its result is the executor's own word, and is only counted and logged."""
        sent = self._sent.get(executor)
        if sent is None or not answer.may_quote:
            return answer
        self._note(executor, answer)
        error = answer.outcome.error
        if not error or (masked := sent.mask(error)) == error:
            return answer
        return replace(answer, outcome=answer.outcome.model_copy(update={"error": masked}))

    def _note(self, executor: str, answer: Answered) -> None:
        secret = self._secret[executor]
        said = [answer.outcome.result, *(update.model_dump() for update in answer.updates)]
        if not secret.texts or said == [None]:
            return
        written = _write(said)
        if secret.mask(written) == written:
            return
        self._metrics.secret_in_result(executor)
        if executor not in self._noted:
            self._noted.add(executor)
            log.warning("a result tells a secret that was sent to its executor; it is passed on", executor=executor)


def _write(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        # It knows no integers beyond 64 bits.
        return json.dumps(value, ensure_ascii=False, default=str)
