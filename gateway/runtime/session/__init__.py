"""One session at work: its worker, inbox, outbox and link."""
