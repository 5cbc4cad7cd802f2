"""How often the gateway looks, and how long it waits, where no configuration says so; tests give shorter times."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Seconds, unless said otherwise; production takes them as they stand here."""

    link_first: float = 0.5
    link_longest: float = 30.0
    """Between two tries at a link at least at first, and at most."""
    link_refused: float = 60.0
    """Between two tries at a link that the runtime refuses for good."""
    autostart_first: float = 1.0
    autostart_longest: float = 60.0
    """Between two attempts to create the session of an `autostart` at least at first, and at most."""
    link_gives_up: float = 600.0
    """How long a redirect or a refused address may stay the only answer until just a reload tries the link again."""
    replay_told: float = 30.0
    """After how long a link whose replay goes on is told of in the log."""
    adapter: float = 600.0
    """How long an adapter may take to create, to connect, to answer a send or a question, or to close a link. Its own
    deadlines are shorter; beyond this one it hangs, and its link is made anew."""
    reread: float = 30.0
    """How long reading the configuration again may take, with all files that it names."""
    takeover_look: float = 1.0
    """Between two looks for sessions that nobody carries."""
    feed_look: float = 1.0
    feed_look_idle: float = 5.0
    """Between two looks at a session that is followed here and carried elsewhere; on a quiet one."""
    interactions_look: float = 1.0
    interactions_look_idle: float = 5.0
    """Between two looks at the questions of other instances; where nobody follows them."""
    delivery_look: float = 2.0
    delivery_look_alone: float = 30.0
    """Between two looks for copies that nobody announced, among other instances and alone."""
    gauges: float = 5.0
    sweep: float = 60.0
    """Between two looks at the gauges that nobody pushes, and between two sweeps of retention."""
    tools_late: float = 50.0
    """How long a started agent has to list its tools; with a look at the gauges, its lack shows within a minute."""
    reply: float = 30.0
    """How long a client waits for a session that does not get to its order."""
    answer: float = 90.0
    """How long a request may take until its answer begins, whatever it waits for; most waits are much shorter."""
    repeat: float = 30.0
    """How long a repeat waits for the first request with its Idempotency-Key."""
    beat: float = 10.0
    """After how long a caller that wants to hear how far its call is hears at least that it goes on."""
    late: timedelta = timedelta(minutes=10)
    """How long after its end a call's callback addresses still answer."""
    snapshot_every: int = 500
    """Events after which a session's memory is written down."""
