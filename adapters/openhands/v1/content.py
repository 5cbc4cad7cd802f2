"""Converts lists of text and image blocks to content and back. Pure."""

from collections.abc import Iterable
from typing import Any, cast

import orjson

from adapters.openhands.v1 import wire
from gateway.adapter.checks import check_json
from gateway.errors import MalformedFrame
from gateway.events import Content, Data, Image, Loss, Text
from gateway.strict_json import json_type, unknown_fields

_TEXT = frozenset({"type", "text", "cache_prompt"})
_IMAGE = frozenset({"type", "image_urls", "cache_prompt"})


def read_blocks(blocks: list[Any], path: str) -> tuple[tuple[Content, ...], tuple[Loss, ...]]:
    """Decode blocks; one of another type becomes data.

    Raises:
        MalformedFrame: with the path of the first error.
    """
    content: list[Content] = []
    losses: tuple[Loss, ...] = ()
    for place, block in enumerate(blocks):
        where = f"{path}/{place}"
        match block:
            case {"type": "text", "text": str(text)}:
                content.append(Text(text=text))
                losses += _unknown(block, _TEXT, where)
            case {"type": "text"}:
                raise MalformedFrame("a text block requires a text", path=f"{where}/text")
            case {"type": "image"}:
                content.extend(Image(url=url) for url in _urls(block, where))
                losses += _unknown(block, _IMAGE, where)
            case {"type": str()}:
                content.append(Data(data=cast("dict[str, Any]", block)))
                losses += (Loss(how="narrowed", path=where, note="a block of an unknown type, stored as data"),)
            case _:
                raise MalformedFrame(f"expected a block with a type, got {json_type(block)}", path=where)
    return tuple(content), losses


def _urls(block: dict[str, Any], where: str) -> list[str]:
    urls: Any = block.get("image_urls")
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in cast("list[Any]", urls)):
        raise MalformedFrame("an image block requires a list of texts", path=f"{where}/image_urls")
    return cast("list[str]", urls)


def _unknown(block: dict[str, Any], known: frozenset[str], where: str) -> tuple[Loss, ...]:
    return unknown_fields({name: None for name in block if name not in known}, where) if len(block) > 2 else ()


def joined(content: Iterable[Content]) -> str:
    """Join texts as the server shows them to the model."""
    return "\n".join(block.text for block in content if isinstance(block, Text))


def read_text(blocks: list[Any], path: str) -> tuple[str, tuple[Loss, ...]]:
    """Decode blocks of which only texts are expected.

    Raises:
        MalformedFrame: with the path of the first error.
    """
    content, losses = read_blocks(blocks, path)
    if any(not isinstance(block, Text) for block in content):
        losses += (Loss(how="dropped", path=path, note="blocks other than text"),)
    return joined(content), losses


def write_blocks(content: Iterable[Content]) -> list[dict[str, Any]]:
    """Encode the content of a stored message as blocks.

    Raises:
        CannotExpress: data is not JSON.
    """
    return [_write(block) for block in content]


def _write(block: Content) -> dict[str, Any]:
    match block:
        case Text(text=text):
            return wire.text_block(text)
        case Image(url=url):
            return wire.image_block([url])
        case Data(data={"type": str()}):
            return cast("dict[str, Any]", block.data)
        case Data(data=data):
            check_json(data, "/content")
            return wire.text_block(orjson.dumps(data).decode())
