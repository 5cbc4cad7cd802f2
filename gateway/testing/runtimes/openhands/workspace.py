"""The runtime of a simulated OpenHands: a folder in memory, and simulated commands."""

import difflib
import json
from typing import Any

from gateway.testing.runtimes.openhands.events import Seen, error_seen
from gateway.testing.runtimes.openhands.rules import Frame

KEPT = 10_000
CONTENT_LIMIT = 30_000
FOLDER = "/workspace/demo"


class Workspace:
    """Executes actions in memory."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.outputs: dict[str, tuple[str, int]] = {}
        """The outputs and exit codes of commands; other commands print that they were simulated."""
        self.executed: list[tuple[str, Frame]] = []
        """All executed actions, in order."""

    def carry_out(self, name: str, args: Frame) -> Seen:
        """Execute an action."""
        self.executed.append((name, args))
        if len(self.executed) > KEPT:
            del self.executed[: KEPT // 10]
        match name:
            case "run":
                output, code = self.outputs.get(args["command"], (f"(simulated) {args['command']}\n", 0))
                return run_seen(args["command"], output, code)
            case "run_ipython":
                return Seen("run_ipython", "(simulated)", {"code": args["code"], "image_urls": None})
            case "read":
                return self._read(args)
            case "write":
                self._keep(args["path"], args["content"])
                return Seen("write", "", {"path": args["path"]})
            case "edit":
                return self._edit(args)
            case "browse":
                return _browse_seen(args["url"], name)
            case "browse_interactive":
                return _browse_seen("about:blank", name)
            case "call_tool_mcp":
                result = {"meta": None, "content": [{"type": "text", "text": "(simulated)"}], "isError": False}
                return Seen("mcp", json.dumps(result), {"name": args["name"], "arguments": args["arguments"]})
            case _:
                return error_seen(f"the runtime cannot execute {name!r}")

    def _read(self, args: Frame) -> Seen:
        path, source = args["path"], args["impl_source"]
        if path in self.files:
            return Seen("read", _cut(self.files[path]), {"path": path, "impl_source": source})
        if source == "default":
            return error_seen(f"File not found: {path}. Your current working directory is {FOLDER}.")
        # The editor reports failures in the content of an ordinary observation.
        return Seen("read", f"ERROR:\nThe path {path} does not exist.", {"path": path, "impl_source": source})

    def _edit(self, args: Frame) -> Seen:
        path = args["path"]
        old = self.files.get(path)
        match args["command"], old:
            case "create", None:
                new, message = args["file_text"] or "", f"File created successfully at: {path}"
            case "create", _:
                return _edit_seen(
                    path, None, None, f"ERROR:\nFile already exists at: {path}. Cannot overwrite it using `create`."
                )
            case _, None:
                return _edit_seen(path, None, None, f"ERROR:\nThe path {path} does not exist.")
            case "str_replace", str() if args["old_str"] and old.count(args["old_str"]) == 1:
                new, message = old.replace(args["old_str"], args["new_str"] or ""), f"The file {path} has been edited."
            case "str_replace", _:
                return _edit_seen(path, old, None, "ERROR:\nold_str does not occur exactly once.")
            case "insert", str():
                lines = old.splitlines(keepends=True)
                lines.insert(args["insert_line"] or 0, f"{args['new_str'] or ''}\n")
                new, message = "".join(lines), f"The file {path} has been edited."
            case command, _:
                return _edit_seen(path, old, None, f"ERROR:\nUnrecognized command {str(command)[:64]}.")
        self._keep(path, new)
        return _edit_seen(path, old, new, message)

    def _keep(self, path: str, content: str) -> None:
        self.files[path] = content
        while len(self.files) > KEPT:
            del self.files[next(iter(self.files))]


def run_seen(command: str, output: str, exit_code: int) -> Seen:
    """Make the result of a command."""
    metadata: dict[str, Any] = {
        "exit_code": exit_code,
        "pid": -1,
        "username": None,
        "hostname": None,
        "working_dir": FOLDER,
        "py_interpreter_path": None,
        "prefix": "",
        "suffix": "",
    }
    extras = {"command": command, "metadata": metadata, "hidden": False}
    return Seen("run", _cut(output), extras, success=exit_code == 0)


def _edit_seen(path: str, old: str | None, new: str | None, content: str) -> Seen:
    before, after = (old or "").splitlines(), (new if new is not None else old or "").splitlines()
    diff = "\n".join(difflib.unified_diff(before, after, path, path, lineterm=""))
    extras = {"path": path, "prev_exist": old is not None, "old_content": old, "new_content": new}
    return Seen("edit", content, {**extras, "impl_source": "oh_aci", "diff": diff, "_diff_cache": None})


def _browse_seen(url: str, action: str) -> Seen:
    texts = dict.fromkeys(("screenshot", "set_of_marks", "last_browser_action", "last_browser_action_error"), "")
    pages = {"open_pages_urls": [url], "active_page_index": 0, "goal_image_urls": []}
    extras = {"url": url, "trigger_by_action": action, "screenshot_path": None, "error": False, **texts, **pages}
    trees: Frame = {"dom_object": {}, "axtree_object": {}, "extra_element_properties": {}}
    return Seen("browse", f"(simulated) {url}", {**extras, **trees, "focused_element_bid": ""})


def _cut(content: str) -> str:
    """Remove the middle of a long text, as the server does."""
    if len(content) <= CONTENT_LIMIT:
        return content
    half = CONTENT_LIMIT // 2
    return f"{content[:half]}\n[... observation truncated ...]\n{content[-half:]}"
