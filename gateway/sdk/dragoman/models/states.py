"""The states of calls, deliveries and interactions, as responses name them. Pure."""

from typing import Literal

CallState = Literal["held", "queued", "dispatched", "accepted", "succeeded", "failed", "canceled", "expired"]
AnswerTo = Literal["runtime", "caller", "none"]
Direction = Literal["from_runtime", "to_runtime"]
SendState = Literal["pending", "delivered", "refused", "moot", "unknown", "dead"]
Lane = Literal["urgent", "turn", "new_work"]
InteractionState = Literal["waiting", "answered", "expired", "moot"]
