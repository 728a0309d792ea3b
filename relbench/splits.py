"""Assigning facts to splits: by subject, over all relations at once, with answers held out for `eval`.

One registry (`tasks/subjects.csv`) fixes each subject's split for good. Subjects of a relation and of
its inverse (country → capital, city → country) count as one, and an assignment never changes what
the registry already holds.
"""

from __future__ import annotations

import csv
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from interventions.errors import UserError
from interventions.files import atomic_write
from relbench.paths import tasks_dir
from relbench.relations import SPLITS, Fact

N_SHOTS = 8
# Shares of what the shots leave.
SHARES = {"detect": 0.45, "tune": 0.10, "eval": 0.45}
# Share of a relation's answers that only eval facts may have.
HELD_OUT_ANSWERS = 1 / 3
# An answer with more than this share of a relation's eval facts is not held out.
MAX_HELD_OUT = 0.15


def registry_path() -> Path:
    """Where the split of every subject is written down."""
    return tasks_dir() / "subjects.csv"


def read_registry() -> dict[str, str]:
    """Subject → split.

    Raises:
        UserError: A line of the registry is not `subject_id,split`.
    """
    if not registry_path().is_file():
        return {}
    with open(registry_path(), encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    registry = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != 2 or row[1] not in SPLITS:
            raise UserError(f"{registry_path()} line {number} is not `subject_id,split`")
        registry[row[0]] = row[1]
    return registry


def write_registry(registry: Mapping[str, str]) -> None:
    """Write the registry, sorted by subject."""
    with atomic_write(registry_path()) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("subject_id", "split"))
        writer.writerows(sorted(registry.items()))


def assign(
    facts: Mapping[str, Iterable[Fact]], registry: Mapping[str, str], *, seed: int = 0
) -> dict[str, str]:
    """A split for every subject, extending `registry`.

    Args:
        facts: Relation → its facts.
        registry: Splits that are fixed already.
        seed: Seed of the order in which ties are decided.

    Returns:
        Subject → split, for every subject of `facts` and `registry`.
    """
    plan = _Plan({name: list(group) for name, group in facts.items()}, registry, seed)
    plan.hold_out_answers()
    plan.choose_shots()
    plan.fill()
    return {**registry, **plan.by_subject()}


class _Plan:
    """The state of one assignment: clusters of subjects, and how far each relation is from its shares."""

    def __init__(self, facts: dict[str, list[Fact]], registry: Mapping[str, str], seed: int) -> None:
        self.facts = facts
        self.cluster = _clusters(facts)
        self.split: dict[str, str] = {}
        self.members: dict[str, list[tuple[str, Fact]]] = defaultdict(list)
        for name in sorted(facts):
            for fact in facts[name]:
                self.members[self.cluster[fact.subject_id]].append((name, fact))
        self.count: dict[str, Counter[str]] = {name: Counter() for name in facts}
        self.order = sorted(self.members)
        random.Random(f"splits:{seed}").shuffle(self.order)
        self.rank = {cluster: position for position, cluster in enumerate(self.order)}
        for subject, split in sorted(registry.items()):
            if subject in self.cluster and self.cluster[subject] not in self.split:
                self._set(self.cluster[subject], split)

    def _set(self, cluster: str, split: str) -> None:
        self.split[cluster] = split
        for name, _ in self.members[cluster]:
            self.count[name][split] += 1

    def _target(self, name: str, split: str) -> float:
        return SHARES[split] * max(len(self.facts[name]) - N_SHOTS, 1)

    def choose_shots(self) -> None:
        """Eight subjects a relation (a quarter of a small one), with different answers, shared ones first."""
        smallest_first = sorted(self.facts, key=lambda name: (len(self.facts[name]), name))
        for name in smallest_first:
            used = Counter(
                fact.answer_id
                for fact in self.facts[name]
                if self.split.get(self.cluster[fact.subject_id]) == "shots"
            )
            frequency = Counter(fact.answer_id for fact in self.facts[name])
            # A small relation keeps more of its facts to score and test.
            wanted = min(N_SHOTS, max(1, len(self.facts[name]) // 4))
            while self.count[name]["shots"] < wanted:
                free = [f for f in self.facts[name] if self.cluster[f.subject_id] not in self.split]
                if not free:
                    break
                # New answers first, and among them common ones: rare answers are wanted in eval.
                best = min(
                    free,
                    key=lambda f: (
                        used[f.answer_id],
                        -min(frequency[f.answer_id], 3),
                        -len(self.members[self.cluster[f.subject_id]]),
                        self.rank[self.cluster[f.subject_id]],
                    ),
                )
                used[best.answer_id] += 1
                self._set(self.cluster[best.subject_id], "shots")

    def hold_out_answers(self) -> None:
        """A third of each relation's answers go to eval alone, as far as eval's share allows."""
        answers_of = {name: {fact.answer_id for fact in facts} for name, facts in self.facts.items()}
        for name in sorted(self.facts, key=lambda name: (-len(answers_of[name]), name)):
            by_answer: dict[str, list[Fact]] = defaultdict(list)
            for fact in self.facts[name]:
                for object_ in fact.objects:
                    by_answer[object_.id].append(fact)
            answers = sorted(by_answer)
            random.Random(f"held-out:{name}").shuffle(answers)
            held = 0
            for answer in answers:
                if held >= int(HELD_OUT_ANSWERS * len(answers)):
                    break
                clusters = {self.cluster[fact.subject_id] for fact in by_answer[answer]}
                if any(self.split.get(cluster, "eval") != "eval" for cluster in clusters):
                    continue
                # A common answer held out would make eval unbalanced.
                if len(by_answer[answer]) > MAX_HELD_OUT * self._target(name, "eval"):
                    continue
                new = sorted(cluster for cluster in clusters if cluster not in self.split)
                if not self._room_in_eval(new):
                    continue
                for cluster in new:
                    self._set(cluster, "eval")
                held += 1

    def _room_in_eval(self, clusters: list[str]) -> bool:
        added = Counter(name for cluster in clusters for name, _ in self.members[cluster])
        return all(
            # Some room stays for eval facts whose answers were seen.
            self.count[name]["eval"] + number <= 0.8 * self._target(name, "eval") + 1
            for name, number in added.items()
        )

    def fill(self) -> None:
        """Everything else goes where its relations, and its answers in them, lack most."""
        wanted = self._answers_wanted()
        for cluster in self.order:
            if cluster in self.split:
                continue
            members = self.members[cluster]

            def lack(split: str, members: list[tuple[str, Fact]] = members) -> float:
                of_relation = (1 - self.count[n][split] / self._target(n, split) for n, _ in members)
                of_answer = ((left := wanted[n, f.answer_id][split]) / (abs(left) + 1) for n, f in members)
                return sum(of_relation) + sum(of_answer)

            best = max(SHARES, key=lack)
            self._set(cluster, best)
            for name, fact in members:
                wanted[name, fact.answer_id][best] -= 1

    def _answers_wanted(self) -> dict[tuple[str, str], dict[str, float]]:
        """How many facts of each (relation, answer) each split should still get, to spread answers alike."""
        wanted = {}
        for name, facts in self.facts.items():
            room = {split: max(self._target(name, split) - self.count[name][split], 0.0) for split in SHARES}
            total = sum(room.values()) or 1.0
            free = Counter(f.answer_id for f in facts if self.cluster[f.subject_id] not in self.split)
            for answer, number in free.items():
                wanted[name, answer] = {split: number * room[split] / total for split in SHARES}
        return wanted

    def by_subject(self) -> dict[str, str]:
        return {subject: self.split[cluster] for subject, cluster in self.cluster.items()}


def _clusters(facts: Mapping[str, list[Fact]]) -> dict[str, str]:
    """Subject → representative of the subjects that must share its split (a fact and its inverse)."""
    answered: dict[str, set[str]] = defaultdict(set)
    for group in facts.values():
        for fact in group:
            answered[fact.subject_id].update(object_.id for object_ in fact.objects)
    parent = {subject: subject for subject in answered}

    def root(subject: str) -> str:
        while parent[subject] != subject:
            parent[subject] = parent[parent[subject]]
            subject = parent[subject]
        return subject

    for subject in sorted(answered):
        for other in sorted(answered[subject]):
            if subject in answered.get(other, ()):
                first, second = sorted((root(subject), root(other)))
                parent[second] = first
    return {subject: root(subject) for subject in answered}


def write_splits(relation: str, registry: Mapping[str, str]) -> int:
    """Put each fact's split into `tasks/<relation>/facts.jsonl`.

    Returns:
        How many facts changed.
    """
    path = tasks_dir() / relation / "facts.jsonl"
    changed = 0
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        raw = json.loads(line)
        split = registry[raw["subject_id"]]
        changed += raw.get("split") != split
        ordered = {key: raw[key] for key in ("id", "subject_id", "subject", "objects")}
        ordered["split"] = split
        ordered.update((key, value) for key, value in raw.items() if key not in ordered)
        lines.append(json.dumps(ordered, ensure_ascii=False))
    if changed:
        with atomic_write(path) as file:
            file.write("\n".join(lines) + "\n")
    return changed
