"""A scripted agent of the Agent Client Protocol on standard input and output, which notes each prompt in a file.

A prompt with `work` makes one tool call of some seconds; one with `fail` is answered with an error.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

_WORKING = 4.0
_canceled = threading.Event()
_writing = threading.Lock()


def _send(**message: Any) -> None:
    with _writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def _update(session: str, **update: Any) -> None:
    _send(method="session/update", params={"sessionId": session, "update": update})


def _say(session: str, text: str) -> None:
    _update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


def _prompt(number: Any, params: dict[str, Any]) -> None:
    session = params["sessionId"]
    text = " ".join(block.get("text", "") for block in params["prompt"])
    with Path(sys.argv[1]).open("a") as prompts:
        prompts.write(json.dumps(text) + "\n")
    if "fail" in text:
        _send(id=number, error={"code": -32602, "message": "as scripted"})
        return
    if "work" in text:
        call = f"call-{time.monotonic_ns()}"
        kind = {"kind": "execute", "title": "sleep", "rawInput": {"command": "sleep"}}
        _update(session, sessionUpdate="tool_call", toolCallId=call, status="in_progress", **kind)
        if _canceled.wait(_WORKING):
            _canceled.clear()
            _send(id=number, result={"stopReason": "cancelled"})
            return
        _update(session, sessionUpdate="tool_call_update", toolCallId=call, status="completed", rawOutput={"ok": True})
    _say(session, f"Done: {text.splitlines()[-1]}")
    _send(id=number, result={"stopReason": "end_turn"})


def main() -> None:
    """Answer until standard input ends."""
    capabilities = {"loadSession": True, "mcpCapabilities": {"http": True, "sse": True}, "promptCapabilities": {}}
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                _send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": capabilities})
            case "session/new":
                _send(id=message["id"], result={"sessionId": "session-1"})
            case "session/prompt":
                threading.Thread(target=_prompt, args=(message["id"], message["params"]), daemon=True).start()
            case "session/cancel":
                _canceled.set()
            case _ if "id" in message and "method" in message:
                _send(id=message["id"], result={})
            case _:
                pass


if __name__ == "__main__":
    main()
