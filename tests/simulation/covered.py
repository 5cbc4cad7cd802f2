"""Print which share of the gateway's lines seeds run: `python -m tests.simulation.covered --seconds 300`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from coverage import Coverage

from tests.simulation.search import ROOT

_PARTS = (
    "gateway/core", "gateway/runtime", "gateway/store/apply.py", "gateway/store/questions", "gateway/store/sqlite",
    "gateway/http/routes", "gateway/http/ui", "gateway/http/mcp", "gateway/executors/webhook", "gateway/links/socketio",
    "adapters/huma",
)  # fmt: skip
# A seed runs in a child that ends with `os._exit`.
_SETTINGS = """
[run]
data_file = {folder}/data
parallel = true
source = {root}/gateway, {root}/adapters
patch = _exit, fork
"""


def main() -> int:
    """Run the simulation with the words of the command line, and print a table."""
    with tempfile.TemporaryDirectory(prefix="dragoman-covered-") as folder:
        settings = Path(folder, "settings")
        settings.write_text(_SETTINGS.format(folder=folder, root=ROOT))
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "tests.simulation"]
        done = subprocess.run(
            [*command, *sys.argv[1:]], cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"}, check=False
        )
        if done.returncode:
            return done.returncode
        found = Coverage(config_file=str(settings))
        found.combine([folder])
        sys.stdout.write("| part | lines | run |\n|---|--:|--:|\n")
        for part in _PARTS:
            path = ROOT / part
            lines = missing = 0
            for file in [path] if path.is_file() else path.rglob("*.py"):
                _, statements, _, absent, _ = found.analysis2(str(file))
                lines += len(statements)
                missing += len(absent)
            sys.stdout.write(f"| `{part}` | {lines:,} | {1 - missing / lines:.0%} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
