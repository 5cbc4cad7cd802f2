"""Turns lists of text blocks into canonical content and back, within Herm's limits. Pure."""

from typing import Any, cast

import orjson

from adapters.herm import wire
from gateway.adapter.checks import check_json, check_text
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Content, Data, Image, Loss, Text
from gateway.events.frozen import frozen
from gateway.strict_json import json_type, pointer, unknown_fields, utf16_length

TEXT_MEMBERS = 2
"""Of a text block: its type, and the text."""


@frozen
class ReadContent:
    """What a list of blocks says, and what of it has no canonical place."""

    content: tuple[Content, ...]
    losses: tuple[Loss, ...]


@frozen
class WrittenContent:
    """A list of blocks, and what it leaves out."""

    blocks: list[dict[str, Any]]
    losses: tuple[Loss, ...] = ()


def read_blocks(blocks: list[Any], path: str, *, strict: bool) -> ReadContent:
    """Read blocks; a strict reading keeps to the documented limits, the other one takes what a newer server says.

    Raises:
        MalformedFrame: naming the first place that is wrong.
    """
    if strict and not 1 <= len(blocks) <= wire.BLOCKS:
        raise MalformedFrame(f"1 to {wire.BLOCKS} text blocks are allowed, not {len(blocks)}", path=path)
    content: list[Content] = []
    losses: list[Loss] = []
    for place, block in enumerate(blocks):
        where = f"{path}/{place}"
        match block:
            case {"type": "text", "text": str(text)}:
                # The documents say characters; whoever checks for others counts the lenient way.
                if strict and len(text) > wire.TEXT_LENGTH:
                    raise MalformedFrame(f"is longer than {wire.TEXT_LENGTH} characters", path=f"{where}/text")
                content.append(Text(text=text))
                if len(block) > TEXT_MEMBERS:
                    rest = {name: None for name in block if name not in {"type", "text"}}
                    losses.extend(unknown_fields(rest, where))
            case {"type": "text"}:
                raise MalformedFrame("a text block needs a text", path=f"{where}/text")
            case {"type": str()} if not strict:
                content.append(Data(data=cast("dict[str, Any]", block)))
                losses.append(Loss(how="narrowed", path=where, note="a block of an unknown type, kept as data"))
            case {"type": str()}:
                raise MalformedFrame("only text blocks are allowed", path=f"{where}/type")
            case _:
                raise MalformedFrame(f"expected a text block, got {json_type(block)}", path=where)
    return ReadContent(tuple(content), tuple(losses))


def join_texts(read: ReadContent, path: str, *, between: str) -> tuple[str, tuple[Loss, ...]]:
    """Say content as one text, for kinds that hold no more than that."""
    texts = [block.text for block in read.content if isinstance(block, Text)]
    losses = read.losses
    if len(texts) < len(read.content):
        losses += (Loss(how="dropped", path=path, note="blocks that are not text"),)
    if len(texts) > 1:
        losses += (Loss(how="narrowed", path=path, note=f"{len(texts)} blocks were joined"),)
    return between.join(texts), losses


def write_content(content: tuple[Content, ...], path: str) -> WrittenContent:
    """Write content as text blocks; images and data are told in words as far as they have any.

    Raises:
        CannotExpress: there is nothing to say, or more than Herm takes.
    """
    blocks: list[dict[str, Any]] = []
    losses: tuple[Loss, ...] = ()
    for place, block in enumerate(content):
        where = pointer(path, place)
        match block:
            case Text(text=text):
                check_text(text, f"{where}/text")
            case Image():
                text = _words_for(block)
                losses += (Loss(how="narrowed" if text else "dropped", path=where, note="Herm takes text only"),)
                check_text(text, where)
            case Data(data=given):
                check_json(given, f"{where}/data")
                text = orjson.dumps(given).decode()
                losses += (Loss(how="narrowed", path=where, note="told as JSON text"),)
        if isinstance(block, Image) and not text:
            continue
        written = write_text(text, path)
        losses += written.losses
        blocks.extend(written.blocks)
    if not blocks:
        raise CannotExpress("Herm takes text only, and there is none", path=path)
    check_count(blocks, path)
    return WrittenContent(blocks, losses)


def _words_for(image: Image) -> str:
    # A data URL is no use to anybody as text.
    url = image.url if image.url.startswith(("https://", "http://")) else ""
    words = " ".join(part for part in (image.alt, url) if part)
    return f"[image: {words}]" if words else ""


def write_text(text: str, path: str) -> WrittenContent:
    """Write a text as blocks, split where it is too long for one.

    Raises:
        CannotExpress: it is too long for all blocks there are.
    """
    if (length := utf16_length(text)) <= wire.TEXT_LENGTH:
        return WrittenContent([wire.text_block(text)])
    if length > wire.BLOCKS * wire.TEXT_LENGTH:
        raise CannotExpress(f"Herm takes at most {wire.BLOCKS} blocks of {wire.TEXT_LENGTH} characters", path=path)
    pieces = split_text(text)
    loss = Loss(how="narrowed", path=path, note=f"split into {len(pieces)} blocks")
    return WrittenContent([wire.text_block(piece) for piece in pieces], (loss,))


def split_text(text: str, length: int = wire.TEXT_LENGTH) -> list[str]:
    """Cut a text into pieces of at most `length` UTF-16 units, never inside a character."""
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
    """Refuse more blocks than Herm takes.

    Raises:
        CannotExpress: there are too many.
    """
    if len(blocks) > wire.BLOCKS:
        raise CannotExpress(f"Herm takes at most {wire.BLOCKS} text blocks, these are {len(blocks)}", path=path)
