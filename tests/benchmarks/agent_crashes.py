"""Kill a run of twenty steps at random points, many times, and see that its journal loses nothing.

Each run is killed up to four times and resumed in a new process until it ends. Fails when a
finished tool call ran again or a result was lost.

    python -m tests.benchmarks.agent_crashes [KILLS]
"""

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.agent.journaled_run import check, run_with_kills


def main(wanted: int) -> None:
    chance = random.Random(1)
    began = time.perf_counter()
    killed = runs = broken_off = 0
    while killed < wanted:
        with tempfile.TemporaryDirectory() as folder:
            killed += run_with_kills(Path(folder), chance=chance, kills=4)
            broken_off += check(Path(folder))
            runs += 1
    print(
        f"{killed} kills in {runs} runs of 20 steps, {time.perf_counter() - began:.0f} s: "
        f"no finished call ran again, no result was lost; {broken_off} calls were broken off "
        "and made again"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
