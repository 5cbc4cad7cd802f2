"""Writes the ends of help texts, and names the default gateway; imports nothing."""

RAW = "\b\n"
"""Keeps the line breaks of the paragraph that it begins: click wraps others."""
DEFAULT_URL = "http://127.0.0.1:8080"
"""The address of a gateway that `serve` runs on this machine."""
SHORT_IDS = "IDs may be abbreviated to their first letters, at least four, if they fit one ID only."


def examples(*lines: str, more: str = "") -> str:
    """Write the end of a command's help: examples, then a paragraph."""
    shown = "".join(f"  {line}\n" for line in lines)
    return f"{RAW}{'Examples' if len(lines) > 1 else 'Example'}:\n{shown}" + (f"\n{more}" if more else "")
