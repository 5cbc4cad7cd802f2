"""The queries that both database engines share, each as one statement.

May import `errors`, `events`.
"""

from gateway.store.questions import (
    calls as calls,
    interactions as interactions,
    order as order,
    sends as sends,
    sessions as sessions,
)
