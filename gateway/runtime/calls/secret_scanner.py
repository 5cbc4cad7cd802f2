"""Masks the secrets of an executor in the errors that it sends back, and counts them in its results."""

import json
from collections.abc import Mapping
from dataclasses import replace

import structlog

from dragoman.hidden import Hidden
from gateway.executors.port import Answered
from gateway.executors.webhook.sent import sent_to
from gateway.runtime.masking import is_registered
from gateway.runtime.metrics import Metrics
from gateway.settings.model import ExecutorSpec, WebhookSpec

log = structlog.get_logger(__name__)


class SecretScanner:
    """Scans the outcomes of executors for the secrets that were sent to them."""

    def __init__(self, metrics: Metrics, executors: Mapping[str, ExecutorSpec]) -> None:
        self._metrics = metrics
        self._sent: Mapping[str, Hidden] = {}
        self._secret: Mapping[str, Hidden] = {}
        self._noted: set[str] = set()
        """Executors for which a secret in a result was logged."""
        self.configure(executors)

    def configure(self, executors: Mapping[str, ExecutorSpec]) -> None:
        """Use the secrets of these executors from now on."""
        self._sent = {
            name: sent_to(spec.url, spec.secret, spec.headers)
            for name, spec in executors.items()
            if isinstance(spec, WebhookSpec)
        }
        self._secret = {
            name: Hidden(value for value in sent.texts if is_registered(value)) for name, sent in self._sent.items()
        }

    def scan(self, executor: str, answer: Answered) -> Answered:
        """Mask secrets in the error of an outcome; leave its result unchanged, but count and log a secret in it."""
        sent = self._sent.get(executor)
        if sent is None or not answer.may_quote:
            return answer
        self._count(executor, answer)
        error = answer.outcome.error
        if not error or (masked := sent.mask(error)) == error:
            return answer
        return replace(answer, outcome=answer.outcome.model_copy(update={"error": masked}))

    def _count(self, executor: str, answer: Answered) -> None:
        result = [answer.outcome.result, *(update.model_dump() for update in answer.updates)]
        written = json.dumps(result, ensure_ascii=False, default=str)
        if self._secret[executor].mask(written) == written:
            return
        self._metrics.secret_in_result(executor)
        if executor not in self._noted:
            self._noted.add(executor)
            log.warning("tool result contains a secret", reason="it was sent to the executor", executor=executor)
