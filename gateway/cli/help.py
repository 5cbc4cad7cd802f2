"""Formats the epilogs of help texts, and holds the default URL; imports nothing."""

RAW = "\b\n"
"""Makes click keep the line breaks of the paragraph that starts with it."""
DEFAULT_URL = "http://127.0.0.1:8080"
"""The address of a gateway that `serve` runs on this machine."""
SHORT_IDS = "Any unique prefix of an ID works, from four characters."


def examples(*lines: str, more: str = "") -> str:
    """Write the epilog of a command's help: examples, then a paragraph."""
    shown = "".join(f"  {line}\n" for line in lines)
    return f"{RAW}{'Examples' if len(lines) > 1 else 'Example'}:\n{shown}" + (f"\n{more}" if more else "")
