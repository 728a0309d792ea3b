"""Grades of every built-in scoring method on the planted model, as the table planted_grades.md.

    python -m benchmarks.planted_grades [--methods NAME,…] [--seeds 3] [-o benchmarks/planted_grades.md]

Means over the planted model's relations and over seeds; `relbench grade METHOD --noise …` prints the same
numbers for one method.
"""

from __future__ import annotations

import argparse

from tqdm import tqdm

from interventions.files import atomic_write
from interventions.grading import Grade, grade
from interventions.methods import METHODS
from interventions.planted.facts import Settings
from relbench.commands.grade import table_rows

NOISES = (0.0, 0.5, 1.0, 2.0)
K = 24
# Costs as much as all others together.
SLOW = ("integrated-gradients",)

HEAD = f"""# Scoring methods on the planted model

Written by `python -m benchmarks.planted_grades`. The planted model (`interventions/planted/`) is a tiny
Llama in which it is known which of its 1,024 `act` units carry which of six relations: 24 each (32 in one
case), 2.3 %. Each cell: share of the top {K} units that carry the relation (precision at {K}) / area under
the precision-recall curve of all units (AUPRC), means over relations and {{seeds}} seeds
({", ".join(SLOW)}: one seed). Chance is 0.02 for both. Prompts and options are each method's defaults.
Noise 0 is exact; at 1 a unit's gate wavers, by properties of the subject, by half of the step that it
detects, and noise units look a little like relation units. The last column is the largest share of confounds
among the top {K} at any noise.

A toy tells what a method can find when relation units exist and are few, not what it finds in a trained
model.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-o", "--out", default="benchmarks/planted_grades.md")
    arguments = parser.parse_args()
    names = arguments.methods.split(",")
    grades: list[Grade] = []
    for name in tqdm(names):
        for seed in range(1 if name in SLOW else arguments.seeds):
            for noise in NOISES:
                grades += grade(name, Settings(noise=noise, seed=seed), ks=(K,))
    cells = {(row["method"], row["noise"]): row for row in table_rows(grades)}
    lines = [
        "| method | " + " | ".join(f"noise {noise:g}" for noise in NOISES) + " | confounds among the top |",
        "|---" + "|---:" * (len(NOISES) + 1) + "|",
    ]
    for name in names:
        row = [cells[name, noise] for noise in NOISES]
        graded = [f"{one[f'precision@{K}']:.2f} / {one['AUPRC']:.2f}" for one in row]
        confounds = max(float(str(one[f"confounds@{K}"])) for one in row)
        lines.append(f"| {name} | " + " | ".join(graded) + f" | {confounds:.2f} |")
    with atomic_write(arguments.out) as file:
        file.write(HEAD.format(seeds=arguments.seeds) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
