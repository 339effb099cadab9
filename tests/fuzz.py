"""Draws new examples for every property test, round after round: python -m tests.fuzz --seconds 600 [--seed N]

`make test` draws the same examples every time, so that a failure comes from the change. This looks for what those
examples miss. Each round has a seed of its own. The first failure ends it, with the command that repeats that round.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The timeout of a single test is for `make test`. Here the time of the whole is bounded.
ROUND = (sys.executable, "-m", "pytest", "-m", "hypothesis", "--hypothesis-profile=fuzz", "-x", "-q", "--timeout=0")


def main() -> int:
    """0 if no round failed before the time was over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long to go on (600)")
    parser.add_argument("--seed", type=int, help="of the first round; the others draw their own")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    rounds, seed = 1, secrets.randbits(32) if options.seed is None else options.seed
    while (outcome := run_round(seed, end)) == 0:
        rounds, seed = rounds + 1, secrets.randbits(32)
    if outcome is None:
        print(f"time is over: no failure in {rounds - 1} whole rounds and a part of one")
        return 0
    print(f"round {rounds} failed (pytest's exit code is {outcome}). Repeat it: make fuzz SEED={seed}")
    return 1


def run_round(seed: int, end: float) -> int | None:
    """pytest's exit code; None if the time was over first."""
    print(f"seed {seed}", flush=True)
    command = [*ROUND, f"--hypothesis-seed={seed}"]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            return process.wait(max(0.0, end - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stopped:
            os.killpg(process.pid, signal.SIGKILL)  # with the service that some tests started
            if isinstance(stopped, KeyboardInterrupt):
                raise
            return None


if __name__ == "__main__":
    sys.exit(main())
