"""A gateway that keeps account of the functions it passes: `walked.py PORT serve …`, in the folder of a release.

Whoever connects to PORT writes `start` or `stop` on a line, and gets one line of JSON: nothing, or how often each
function of Python was begun or gone on with since, in all threads, as `[file, name, times]`.
"""

import json
import os
import socket
import sys
import threading
from collections import Counter
from types import CodeType, FrameType

sys.path.insert(0, os.getcwd())  # noqa: PTH109 -- a release finds itself here
# Tasks are begun by a function of Python then, which is seen.
sys.modules["uvloop"] = None  # type: ignore[assignment]


class Walk:
    """What was passed while it was on."""

    def __init__(self) -> None:
        self.passed = Counter[CodeType]()
        self.on = False

    def begin(self) -> None:
        """Look at every thread; those that are there already only where Python can."""
        if sys.version_info >= (3, 12):
            watch = sys.monitoring
            watch.use_tool_id(watch.PROFILER_ID, "walk")
            for event in (watch.events.PY_START, watch.events.PY_RESUME):
                watch.register_callback(watch.PROFILER_ID, event, self._pass)
            watch.set_events(watch.PROFILER_ID, watch.events.PY_START | watch.events.PY_RESUME)
        else:
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)

    def _pass(self, code: CodeType, _offset: int) -> None:
        if self.on:
            self.passed[code] += 1

    def _profile(self, frame: FrameType, event: str, _arg: object) -> None:
        if self.on and event == "call":
            self.passed[frame.f_code] += 1

    def obey(self, listener: socket.socket) -> None:
        """Carry out what is asked for, one line after the other."""
        with listener, listener.accept()[0] as connection, connection.makefile("rw") as lines:
            for line in lines:
                answer: list[tuple[str, str, int]] = []
                if line.strip() == "start":
                    self.passed.clear()
                    self.on = True
                else:
                    self.on = False
                    answer = [(code.co_filename, code.co_qualname, n) for code, n in list(self.passed.items())]
                lines.write(json.dumps(answer) + "\n")
                lines.flush()


def main() -> None:
    """Serve, and be asked."""
    listener = socket.create_server(("127.0.0.1", int(sys.argv.pop(1))))
    walk = Walk()
    # Before it looks at threads, so that it is not seen itself.
    threading.Thread(target=walk.obey, args=[listener], daemon=True).start()
    walk.begin()
    from gateway.cli import main as run  # noqa: PLC0415 -- all that it loads is looked at

    run()


if __name__ == "__main__":
    main()
