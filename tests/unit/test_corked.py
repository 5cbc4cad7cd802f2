"""Messages of a websocket that leave together."""

from gateway.links.corked import CorkedTransport


class Written(list[bytes]):
    """The transport, as a list of what was written."""

    closing = False

    def write(self, data: bytes) -> None:
        self.append(data)

    def is_closing(self) -> bool:
        return self.closing


def test_what_is_kept_leaves_in_one_write_and_the_next_at_once() -> None:
    written = Written()
    transport = CorkedTransport(written)
    transport.cork()
    transport.write(b"one ")
    transport.cork()
    transport.write(b"two")
    assert written == []
    transport.uncork()
    transport.write(b"three")
    assert written == [b"one two", b"three"]


def test_nothing_is_written_for_nothing_nor_to_what_is_closing() -> None:
    written = Written()
    transport = CorkedTransport(written)
    transport.cork()
    transport.uncork()
    transport.uncork()
    transport.cork()
    transport.write(b"too late")
    written.closing = True
    transport.uncork()
    assert written == []


def test_what_is_forgotten_never_leaves() -> None:
    written = Written()
    transport = CorkedTransport(written)
    transport.cork()
    transport.write(b"x" * 40_000)
    transport.forget()
    transport.uncork()
    transport.cork()
    transport.write(b"y" * 40_000)
    assert written == []


def test_much_leaves_at_once_in_its_order() -> None:
    written = Written()
    transport = CorkedTransport(written)
    transport.cork()
    transport.write(b"first ")
    transport.write(b"x" * 70_000)
    transport.write(b"last")
    assert written == [b"first " + b"x" * 70_000]
    transport.uncork()
    assert written[1:] == [b"last"]
