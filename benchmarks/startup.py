"""How long a user waits before anything happens: the help, the task index, loading every task.

Run: python -m benchmarks.startup [--runs 5]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

from relbench.paths import tasks_dir


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


INDEX = """
import sys, time
from lm_eval.tasks import TaskManager
started = time.perf_counter()
manager = TaskManager(include_path=sys.argv[1], include_defaults=sys.argv[2] == "all")
print(time.perf_counter() - started)
"""


def _index(which: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", INDEX, str(tasks_dir()), which], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main() -> None:
    """Print the medians as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    help_ = median(_seconds([sys.executable, "-m", "relbench", "--help"]) for _ in range(runs))
    ours = median(_index("ours") for _ in range(runs))
    everything = median(_index("all") for _ in range(runs))
    n_files = sum(1 for _ in tasks_dir().rglob("*.yaml"))
    print("| | seconds |\n|---|---:|")
    print(f"| `relbench --help`, whole process | {help_:.2f} |")
    print(f"| lm-eval's index of our {n_files} YAML files (`include_defaults=False`) | {ours:.2f} |")
    print(f"| the same with lm-eval's own tasks | {everything:.2f} |")


if __name__ == "__main__":
    main()
