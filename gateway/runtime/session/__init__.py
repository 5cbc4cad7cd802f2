"""The actor of one session: its worker, inbox, outbox and link."""
