"""Intervals and timeouts that are not configurable; tests use shorter ones."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Times in seconds unless noted otherwise; production uses the defaults."""

    link_first: float = 0.5
    link_longest: float = 30.0
    """The first and the longest back-off of a link."""
    link_refused: float = 60.0
    """The interval of attempts at a link that the runtime refuses permanently."""
    autostart_first: float = 1.0
    autostart_longest: float = 60.0
    """The first and the longest back-off of an `autostart`."""
    link_gives_up: float = 600.0
    """How long a link is retried that gets only redirects or forbidden addresses; then only a reload retries it."""
    replay_warning: float = 30.0
    """How long a replay may take before the log warns of it."""
    adapter: float = 600.0
    """How long an adapter may take to create a session, or to open, use, query or close a link. Its own deadlines are
    shorter; an adapter that exceeds this one is hung, and its link is replaced."""
    reread: float = 30.0
    """How long reading the configuration and its files may take."""
    takeover_look: float = 1.0
    """The interval of checks for sessions without an owner."""
    feed_look: float = 1.0
    feed_look_idle: float = 5.0
    """The interval of queries for events of a session that another instance owns; for a quiet session."""
    stream_look: float = 0.5
    """The interval of queries for events of all sessions while a stream over sessions is open."""
    interactions_look: float = 1.0
    interactions_look_idle: float = 5.0
    """The interval of queries for interactions of other instances; without followers."""
    delivery_look: float = 2.0
    delivery_look_alone: float = 30.0
    """The interval of queries for unannounced copies, with other instances and alone."""
    live_copy: float = 5.0
    """How long a live event may wait for its destination, and then how long its request may take."""
    gauges: float = 5.0
    sweep: float = 60.0
    """The intervals of measured gauges and of retention."""
    tools_late: float = 50.0
    """How long a started agent may take to list its tools; with `gauges`, the metric shows a lack within a minute."""
    reply: float = 30.0
    """How long a client request waits for its session."""
    answer: float = 90.0
    """How long a request may take until its response starts; most waits are much shorter."""
    session_waits: float = 10.0
    store_waits: float = 60.0
    """How long a session may be suspended, and how long its step may be in the store, until that is a condition."""
    repeat: float = 30.0
    """How long a repeated request waits for the first one with its Idempotency-Key."""
    beat: float = 10.0
    """The interval of progress notifications to a caller that requested progress, if its call reports none."""
    late: timedelta = timedelta(minutes=10)
    """How long the callback addresses of a call respond after its end."""
    tell_after: timedelta = timedelta(minutes=2)
    """How long after the end of a held call its agent may fetch the outcome, before the conversation is told."""
    snapshot_every: int = 500
    snapshot_bytes: int = 4 * 1024 * 1024
    """The number of events, or of their bytes, between snapshots of a session's memory."""
