"""Converts lists of text blocks to content and back, within Herm's limits. Pure."""

from typing import Any, cast

import orjson

from adapters.herm import wire
from gateway.adapter.checks import check_json, check_text
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Content, Data, Image, Loss, Text
from gateway.events.frozen import frozen
from gateway.strict_json import json_type, pointer, unknown_fields, utf16_length

TEXT_MEMBERS = 2
"""The members of a text block: type and text."""


@frozen
class ReadContent:
    """The content of a list of blocks, and its losses."""

    content: tuple[Content, ...]
    losses: tuple[Loss, ...]


@frozen
class WrittenContent:
    """A list of blocks, and its losses."""

    blocks: list[dict[str, Any]]
    losses: tuple[Loss, ...] = ()


def read_blocks(blocks: list[Any], path: str, *, strict: bool) -> ReadContent:
    """Decode blocks; `strict` enforces the documented limits and types.

    Raises:
        MalformedFrame: with the path of the first error.
    """
    if strict and not 1 <= len(blocks) <= wire.BLOCKS:
        raise MalformedFrame(f"1 to {wire.BLOCKS} text blocks are allowed, not {len(blocks)}", path=path)
    content: list[Content] = []
    losses: list[Loss] = []
    for place, block in enumerate(blocks):
        where = f"{path}/{place}"
        match block:
            case {"type": "text", "text": str(text)}:
                # The documents count characters; a check of foreign text uses the lenient unit.
                if strict and len(text) > wire.TEXT_LENGTH:
                    raise MalformedFrame(f"is longer than {wire.TEXT_LENGTH} characters", path=f"{where}/text")
                content.append(Text(text=text))
                if len(block) > TEXT_MEMBERS:
                    rest = {name: None for name in block if name not in {"type", "text"}}
                    losses.extend(unknown_fields(rest, where))
            case {"type": "text"}:
                raise MalformedFrame("a text block requires a text", path=f"{where}/text")
            case {"type": str()} if not strict:
                content.append(Data(data=cast("dict[str, Any]", block)))
                losses.append(Loss(how="narrowed", path=where, note="a block of an unknown type, stored as data"))
            case {"type": str()}:
                raise MalformedFrame("only text blocks are allowed", path=f"{where}/type")
            case _:
                raise MalformedFrame(f"expected a text block, got {json_type(block)}", path=where)
    return ReadContent(tuple(content), tuple(losses))


def join_texts(read: ReadContent, path: str, *, between: str) -> tuple[str, tuple[Loss, ...]]:
    """Join content into one text, for kinds with a single text."""
    texts = [block.text for block in read.content if isinstance(block, Text)]
    losses = read.losses
    if len(texts) < len(read.content):
        losses += (Loss(how="dropped", path=path, note="blocks other than text"),)
    if len(texts) > 1:
        losses += (Loss(how="narrowed", path=path, note=f"{len(texts)} blocks were joined"),)
    return between.join(texts), losses


def write_content(content: tuple[Content, ...], path: str) -> WrittenContent:
    """Encode content as text blocks; images and data become text if possible.

    Raises:
        CannotExpress: the result is empty or exceeds Herm's limits.
    """
    blocks: list[dict[str, Any]] = []
    losses: tuple[Loss, ...] = ()
    for place, block in enumerate(content):
        where = pointer(path, place)
        match block:
            case Text(text=text):
                check_text(text, f"{where}/text")
            case Image():
                text = _describe(block)
                losses += (Loss(how="narrowed" if text else "dropped", path=where, note="Herm accepts text only"),)
                check_text(text, where)
            case Data(data=given):
                check_json(given, f"{where}/data")
                text = orjson.dumps(given).decode()
                losses += (Loss(how="narrowed", path=where, note="sent as JSON text"),)
        if isinstance(block, Image) and not text:
            continue
        written = write_text(text, path)
        losses += written.losses
        blocks.extend(written.blocks)
    if not blocks:
        raise CannotExpress("Herm accepts text only, and the message has none", path=path)
    check_count(blocks, path)
    return WrittenContent(blocks, losses)


def _describe(image: Image) -> str:
    # A data URL is useless as text.
    url = image.url if image.url.startswith(("https://", "http://")) else ""
    words = " ".join(part for part in (image.alt, url) if part)
    return f"[image: {words}]" if words else ""


def write_text(text: str, path: str) -> WrittenContent:
    """Encode a text as blocks; a text that is too long for one is split.

    Raises:
        CannotExpress: it is too long for all blocks.
    """
    if (length := utf16_length(text)) <= wire.TEXT_LENGTH:
        return WrittenContent([wire.text_block(text)])
    if length > wire.BLOCKS * wire.TEXT_LENGTH:
        raise CannotExpress(f"Herm accepts at most {wire.BLOCKS} blocks of {wire.TEXT_LENGTH} characters", path=path)
    pieces = split_text(text)
    loss = Loss(how="narrowed", path=path, note=f"split into {len(pieces)} blocks")
    return WrittenContent([wire.text_block(piece) for piece in pieces], (loss,))


def split_text(text: str, length: int = wire.TEXT_LENGTH) -> list[str]:
    """Split a text into parts of at most `length` UTF-16 units, never inside a character."""
    raw = text.encode("utf-16-le")
    pieces: list[str] = []
    start = 0
    while start < len(raw):
        end = min(start + 2 * length, len(raw))
        # The high byte of a pair's first half is D8 to DB; its second half belongs to it.
        if end < len(raw) and 0xD8 <= raw[end - 1] <= 0xDB:
            end -= 2
        pieces.append(raw[start:end].decode("utf-16-le"))
        start = end
    return pieces


def check_count(blocks: list[dict[str, Any]], path: str) -> None:
    """Refuse more blocks than Herm accepts.

    Raises:
        CannotExpress: there are too many blocks.
    """
    if len(blocks) > wire.BLOCKS:
        raise CannotExpress(f"Herm accepts at most {wire.BLOCKS} text blocks, not {len(blocks)}", path=path)
