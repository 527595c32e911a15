"""What `import agentdiff` costs beside `import httpx, pydantic`, in CPU time.

Each import is timed inside a fresh interpreter, its start not counted; the two take turns, so
that a busy machine slows both. Compiled files lie in a folder of their own and are warm.

    python tests/benchmarks/import_time.py [ROUNDS]
"""

import os
import platform
import subprocess
import sys
import tempfile
from statistics import median

OURS, FLOOR = "agentdiff", "httpx, pydantic"

PROBE = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


def import_s(modules: str, cache: str) -> float:
    """CPU seconds that one fresh interpreter spends on `import modules`."""
    env = os.environ | {"PYTHONPYCACHEPREFIX": cache}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", PROBE.format(modules)]
    return float(subprocess.run(command, env=env, capture_output=True, check=True).stdout)


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as cache:
        for modules in (OURS, FLOOR):
            import_s(modules, cache)
        pairs = [(import_s(OURS, cache), import_s(FLOOR, cache)) for _ in range(rounds)]
    ours, floor = (median(times) for times in zip(*pairs, strict=True))
    ratio = median(a / b for a, b in pairs)
    print(f"import {OURS:16} {ours * 1000:6.0f} ms")
    print(f"import {FLOOR:16} {floor * 1000:6.0f} ms")
    print(f"ratio                   {ratio:6.2f}")
    print(
        f"medians of {rounds} rounds, CPU time, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
