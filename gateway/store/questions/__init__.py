"""The questions that databases answer, each one statement, by what is asked about."""

from gateway.store.questions import calls as calls, kept as kept, sends as sends, sessions as sessions
