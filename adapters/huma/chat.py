"""Converts posted messages to HUMA's chat messages and back. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from adapters.huma import wire
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Author, Draft, Envelope, Image, Loss, MessagePosted, Text
from gateway.strict_json import find_fault, read_model, unknown_fields


@dataclass(frozen=True, slots=True)
class WrittenMessage:
    """A native chat message, and its losses."""

    message: dict[str, Any]
    losses: tuple[Loss, ...]


def read_chat_message(content: dict[str, Any]) -> Draft:
    """Decode a chat message; the paths of losses and errors are those of a `new-message`.

    Raises:
        MalformedFrame: it is not a chat message.
    """
    chat = read_model(wire.ChatMessage, content, "/content")
    losses = (
        *unknown_fields(chat.model_extra, "/content"),
        *unknown_fields(chat.participant.model_extra, "/content/participant"),
    )
    images: list[Image] = []
    for place, image in enumerate(chat.images or []):
        images.append(Image(url=image.url, alt=image.alt))
        losses += unknown_fields(image.model_extra, f"/content/images/{place}")
    created_at, more = _read_time(chat.created_at)
    event = MessagePosted(
        author=Author(role="user", id=chat.participant.id, name=chat.participant.nickname),
        content=(*([Text(text=chat.content)] if chat.content or not images else []), *images),
        message_id=chat.id,
        created_at=created_at,
    )
    return Draft(event, native_id=chat.id, native_time=chat.created_at, losses=losses + more)


def _read_time(given: str | None) -> tuple[datetime | None, tuple[Loss, ...]]:
    if given is None:
        return None, ()
    try:
        moment = datetime.fromisoformat(given)
    except ValueError as exc:
        raise MalformedFrame("is not an ISO 8601 time", path="/content/createdAt") from exc
    if moment.tzinfo is not None:
        return moment, ()
    return moment.replace(tzinfo=UTC), (
        Loss(how="defaulted", path="/content/createdAt", note="no time zone; read as UTC"),
    )


def write_chat_message(posted: MessagePosted, item: Draft | Envelope, path: str = "") -> WrittenMessage:
    """Encode a posted message; `path` is its place in the event.

    Raises:
        CannotExpress: HUMA does not accept an image, or the message is empty.
    """
    losses: list[Loss] = []
    text, images = _content(posted, path, losses)
    author_id = posted.author.id or posted.author.name or posted.author.role
    nickname = posted.author.name or posted.author.id or posted.author.role
    for given, member in ((posted.author.id, "id"), (posted.author.name, "name")):
        if not given:
            losses.append(Loss(how="invented", path=f"{path}/author/{member}", note="HUMA requires a sender"))
    if posted.author.role != "user":
        losses.append(Loss(how="dropped", path=f"{path}/author/role", note="HUMA's participants have no role"))
    if posted.message_id is None:
        losses.append(Loss(how="invented", path=f"{path}/message_id", note="HUMA requires an id"))
    created_at = posted.created_at
    if created_at is None and isinstance(item, Envelope):
        created_at = item.recorded_at
        losses.append(Loss(how="invented", path=f"{path}/created_at", note="the time of its record"))
    for member, is_lost in (
        ("complete", not posted.complete),
        ("burst", posted.burst is not None),
        ("extra_args", posted.extra_args is not None),
    ):
        if is_lost:
            losses.append(Loss(how="dropped", path=f"{path}/{member}"))
    message = wire.chat_message(
        posted.message_id or _invent_id(posted, item),
        content=text,
        images=images,
        author=(author_id, nickname),
        created_at=None if created_at is None else _write_time(created_at),
    )
    if fault := find_fault(message):
        raise CannotExpress(f"the message {fault.reason}", path=path)
    return WrittenMessage(message, tuple(losses))


def _content(posted: MessagePosted, path: str, losses: list[Loss]) -> tuple[str, list[dict[str, Any]]]:
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    for place, block in enumerate(posted.content):
        match block:
            case Text():
                texts.append(block.text)
                if images:
                    losses.append(Loss(how="narrowed", path=f"{path}/content", note="images follow the text"))
            case Image():
                images.append(_image(block, f"{path}/content/{place}"))
            case _:
                losses.append(Loss(how="dropped", path=f"{path}/content/{place}", note="HUMA has no data blocks"))
    if not texts and not images:
        raise CannotExpress("a message for HUMA requires a text or an image", path=f"{path}/content")
    if len(texts) > 1:
        losses.append(Loss(how="narrowed", path=f"{path}/content", note="texts were joined with newlines"))
    return "\n".join(texts), images


def _image(image: Image, path: str) -> dict[str, Any]:
    if not image.url.startswith(wire.IMAGE_PREFIXES):
        raise CannotExpress(
            "HUMA accepts images only as base64 data URLs of PNG, JPEG, WebP or GIF", path=f"{path}/url"
        )
    # Four base64 characters are three bytes.
    if len(image.url) * 3 // 4 > wire.IMAGE_BYTES:
        raise CannotExpress(f"HUMA accepts images up to {wire.IMAGE_BYTES} bytes", path=f"{path}/url")
    return wire.without_none({"url": image.url, "alt": image.alt})


def _write_time(moment: datetime) -> str:
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return utc.isoformat().replace("+00:00", "Z")


def _invent_id(posted: MessagePosted, item: Draft | Envelope) -> str:
    # Equal items must give equal frames, so the id depends only on the item.
    if isinstance(item, Envelope):
        return item.event_id
    return "msg-" + sha256(repr(posted).encode("utf-8", "backslashreplace")).hexdigest()[:32]
