"""Reads how a Socket.IO server turns a client away."""

from gateway.strict_json import Malformed


def find_code(said: object, codes: frozenset[str]) -> str | None:
    """Find one of the codes in a refusal: as text, as `code` or `message`, or inside `data`."""
    match said:
        case str():
            words = said.replace(":", " ").split()
            return next((code for code in sorted(codes) if code in words), None)
        case {"type": str(kind)} if kind not in {"error", "connect_error"}:
            return None
        case {"code": str(code)}:
            return code if code in codes else None
        case {"data": {"code": str(code)} | str(code)} if code in codes:
            return code
        case {"message": str(text)} | {"error": str(text)}:
            return find_code(text, codes)
        case _:
            return None


def message_of(said: object) -> str:
    match said:
        case str():
            return said
        case {"message": str(message)}:
            return message
        case Malformed():
            return said.reason
        case _:
            return ""
