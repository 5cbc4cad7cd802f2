"""Run seeds: `python -m tests.simulation --seed 7`."""

import argparse
import os
import secrets
import sys

from tests.simulation.release import release
from tests.simulation.shrink import cpu, shrink
from tests.simulation.world import Story, WorldFault, prepare, run

_SHOWN = 30
"""Lines that are printed of a log, and of the story of the first seed that fails."""


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description="Run the gateway in a simulated world.")
    parser.add_argument("--seed", help="replay one seed and print its story: 7, or 7@RELEASE as a run has printed it")
    parser.add_argument("--shrink", action="store_true", help="remove steps of --seed while its promise still breaks")
    parser.add_argument("--steps", type=int, default=200, help="steps of a run (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, help="run seeds for this much CPU instead of --count")
    parser.add_argument("--minutes", type=float, help="run fresh seeds for this much CPU")
    parser.add_argument("--until-broken", action="store_true", help="stop at the first broken promise")
    parser.add_argument("--twice", action="store_true", help="run each seed twice and compare the stories")
    parser.add_argument("--count", type=int, default=20, help="number of seeds (%(default)s)")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("set PYTHONHASHSEED=0, so that a seed tells the same story again")
    prepare()
    try:
        return _replay(parser, given) if given.seed is not None else _search(given)
    except WorldFault as exc:
        say(f"the world is wrong, and the run says nothing about the gateway: {exc}")
        return 2


def _replay(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    number, _, told_by = str(given.seed).partition("@")
    if not number.isdecimal():
        parser.error(f"{given.seed!r} is not a seed: write a number, or NUMBER@RELEASE")
    if told_by and told_by != release():
        say(f"seed {number} is of another release ({told_by}, and this is {release()}): it tells another story here")
    story = run(int(number), given.steps)
    if given.shrink and story.broken:
        kept, story = shrink(int(number), given.steps, story, say)
        say(f"needs the steps {', '.join(map(str, kept)) or 'of no seed'}")
    say("\n".join(story.lines))
    _show_log(story)
    return 1 if story.broken else 0


def _show_log(story: Story) -> None:
    if story.log:
        say("\n".join(["The last errors of the gateway, in real time:", *story.log[-_SHOWN:]]))


def _search(given: argparse.Namespace) -> int:
    if given.minutes is not None:
        given.first, given.seconds = secrets.randbelow(10**9), given.minutes * 60
        say(f"fresh seeds from {given.first}@{release()}, for {given.minutes:g} minutes of CPU")
    began, done, failed = cpu(), 0, 0
    while done < given.count if given.seconds is None else cpu() - began < given.seconds:
        seed = given.first + done
        story = run(seed, given.steps)
        done += 1
        told = story.broken[0] if story.broken else ""
        if given.twice and run(seed, given.steps).lines != story.lines:
            told = "the seed tells two stories"
        if told:
            failed += 1
            say(f"seed {seed}@{release()}, {cpu() - began:.1f} s: {told}")
            if failed == 1:
                say("\n".join(story.lines[-_SHOWN:]))
                _show_log(story)
            if given.until_broken:
                return 1
    seconds = cpu() - began
    speed = done * given.steps / seconds * 60
    say(f"{done} seeds from {given.first}, {speed:,.0f} steps a minute of CPU, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
