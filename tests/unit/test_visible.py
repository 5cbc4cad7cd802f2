"""One function decides which characters a reader cannot see, for pages, terminals and logs."""

import subprocess
import sys
import unicodedata

import pytest

from gateway.cli.lines import clean, clean_line
from gateway.executors.webhook.answers import clean as clean_answer
from gateway.http.ui.text import reveal, reveal_long, reveal_short
from gateway.runtime.masking import mask_text
from gateway.visible import is_hidden, show_hidden

EVERY = [chr(code) for code in range(sys.maxunicode + 1)]
_IGNORABLE = r'for (0..0x10ffff) { no warnings; print "$_\n" if chr($_) =~ /\p{Default_Ignorable_Code_Point}/ }'


def default_ignorable() -> set[str]:
    """Return the code points that Unicode calls ignorable, from the tables of Perl."""
    done = subprocess.run(["perl", "-e", _IGNORABLE], capture_output=True, check=True)
    return {chr(int(code)) for code in done.stdout.split()}


def test_every_character_that_unicode_calls_invisible_is_hidden() -> None:
    ignorable = default_ignorable()
    assert len(ignorable) > 4_000
    expected = {
        one
        for one in EVERY
        if one in ignorable
        or one == "\u2800"
        or unicodedata.category(one) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    }
    assert {one for one in EVERY if is_hidden(one)} == expected


def test_hidden_characters_are_shown_as_escapes_and_no_others_change() -> None:
    for one in EVERY:
        shown = show_hidden(f"a{one}b")
        assert shown == (f"a{one.encode('unicode_escape').decode()}b" if is_hidden(one) else f"a{one}b")
    assert show_hidden("\x1b\n\u200b", keep="\n") == "\\x1b\n\\u200b"


@pytest.mark.parametrize("show", [clean, clean_line, clean_answer, mask_text, reveal, reveal_short, reveal_long])
def test_no_way_out_shows_a_hidden_character(show: object) -> None:
    assert callable(show)
    for one in EVERY:
        if is_hidden(one) and not one.isspace():
            shown = str(show(f"a{one}b"))
            assert one not in shown, f"{one!r}"
            assert "\\" in shown, f"{one!r}"
