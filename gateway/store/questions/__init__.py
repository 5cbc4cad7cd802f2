"""The queries that both database engines share, each as one statement."""

from gateway.store.questions import calls as calls, kept as kept, sends as sends, sessions as sessions
