"""Native frames of events: writes received frames for the store, and encodes sent events again on request."""

from collections.abc import Callable, Mapping, Sequence
from json import loads
from typing import Any

import orjson
from pydantic import SecretStr

from gateway.adapter.port import Adapter, Codec, Frame, RuntimeOptions
from gateway.errors import CannotExpress
from gateway.events import Draft, Envelope, Opaque, SecretSupplied
from gateway.events.envelope import OWN_KINDS
from gateway.events.frozen import frozen, replace
from gateway.runtime.masking import mask_json
from gateway.runtime.session.codec import CheckedCodec
from gateway.store.port import Engine
from gateway.store.rows import SessionRow
from gateway.store.step import RUNTIME
from gateway.strict_json import Malformed

LARGEST = 64 * 1024
"""Bytes of JSON up to which the payload of a frame is kept and shown."""
_UNKNOWN = SecretStr("<secret>")


@frozen
class NativeFrames:
    """The native frames of one event."""

    frames: tuple[Mapping[str, Any], ...]
    """`channel`, `payload`, and in `omitted` the reason why there is no payload."""
    reencoded: bool
    """Whether the frames were encoded again from the recorded event, because the gateway sent them."""


def keep_frame(frame: Frame, drafts: Sequence[Draft]) -> bytes:
    """Write a received frame as JSON without secrets: the registered ones, and those that its codec knows."""
    payload, written = frame.payload, frame.written
    secrets: list[str] = []
    for draft in drafts:
        match draft.event:
            case SecretSupplied(value=value):
                secrets.append(value.get_secret_value())
            case Opaque(payload=masked) if masked is not payload:
                payload, written = masked, None
            case _:
                pass
    return _write(frame.channel, payload, written, secrets)


class NativeReader:
    """Reads the native frames of recorded events."""

    def __init__(
        self, engine: Engine, adapters: Mapping[str, Adapter], runtimes: Callable[[], Mapping[str, RuntimeOptions]]
    ) -> None:
        """Prepare; `runtimes` returns the options of the configured runtimes."""
        self._engine = engine
        self._adapters = adapters
        self._runtimes = runtimes

    async def frames_of(self, session: SessionRow, envelopes: Sequence[Envelope]) -> Mapping[int, NativeFrames]:
        """Return the native frames of a session's events, by sequence; events without frames are absent.

        Sent frames are encoded by the adapter of today's configuration. A state that was replaced by a newer one while
        it waited differs from what was sent.
        """
        found: dict[int, NativeFrames] = {}
        codec = self._codec_of(session.runtime)
        for envelope in envelopes:
            if envelope.native is not None:
                found[envelope.sequence] = NativeFrames((loads(envelope.native),), reencoded=False)
            elif codec is not None and _may_be_sent(envelope) and await self._is_sent(envelope):
                frames = _encode(codec, envelope)
                if frames:
                    found[envelope.sequence] = NativeFrames(frames, reencoded=True)
        return found

    def _codec_of(self, runtime: str) -> Codec | None:
        options = self._runtimes().get(runtime)
        adapter = None if options is None else self._adapters.get(options.adapter)
        return None if adapter is None else CheckedCodec(adapter.codec(options), runtime=runtime)

    async def _is_sent(self, envelope: Envelope) -> bool:
        sends = await self._engine.sends_of(envelope.session_id, envelope.sequence)
        return any(send.target == RUNTIME for send in sends)


def _may_be_sent(envelope: Envelope) -> bool:
    return envelope.direction == "to_runtime" and envelope.origin is None and envelope.event.kind not in OWN_KINDS


def _encode(codec: Codec, envelope: Envelope) -> tuple[Mapping[str, Any], ...]:
    if isinstance(envelope.event, SecretSupplied):
        # The store has only asterisks, which no codec sends.
        hidden = envelope.event.model_copy(update={"value": _UNKNOWN})
        envelope = replace(envelope, event=hidden)
    try:
        frames = codec.encode(envelope).frames
    except CannotExpress:
        return ()
    return tuple(loads(_write(frame.channel, frame.payload, frame.written)) for frame in frames)


def _write(channel: str, payload: Any, written: bytes | None, secrets: Sequence[str] = ()) -> bytes:
    """Write the JSON of a frame as the store keeps it and the API shows it."""
    if isinstance(payload, Malformed):
        payload = payload.excerpt
    shown: orjson.Fragment | None = None
    omitted: str | None = None
    try:
        written = orjson.dumps(payload) if written is None else written
        if len(written) > LARGEST:
            omitted = f"it has {len(written):,} bytes; at most {LARGEST:,} are kept"
        else:
            shown = orjson.Fragment(mask_json(written, secrets))
    # orjson refuses lone surrogates, integers beyond 64 bits and deep nesting.
    except TypeError as exc:
        omitted = f"it cannot be written as JSON: {exc}"
    return orjson.dumps({"channel": channel[:64], "payload": shown, "omitted": omitted})
