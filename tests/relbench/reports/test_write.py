"""Whole reports of made-up sweeps: which files, what is in them, what goes, what stays, what is printed."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from relbench.cli import main
from relbench.findings import Findings, make_findings
from relbench.reports import write
from relbench.reports.figures import DRAWN
from relbench.reports.terminal import terminal_tables
from relbench.reports.write import write_report
from relbench.samples import BASELINE, Sample, read_samples, write_samples
from relbench.treatments import BAND, COMPLEMENT, RANDOM, Treatment
from tests.relbench.sweeps import grid, make_sweep, write_perplexity

RELATIONS = ["country_capital", "company_hq", "landmark_on_continent", "thing_color"]
CONCEPTS = [f"{relation}@en" for relation in RELATIONS]
CONFIG = {
    "relations": RELATIONS,
    "languages": ["en", "de"],
    "templates": ["completion", "question"],
    "methods": [{"id": "m", "name": "average-precision"}],
    "contrast_relations": ["landmark_on_continent"],
}


def _outcome(treatment: Treatment, sample: Sample) -> bool:
    """All right but three facts, in German colours all but ten; a mask loses k of its relation's, 3 of others'."""
    number = sample.doc_id
    if sample.relation == "thing_color" and sample.language == "de":
        return number < 10
    if number >= 27:
        return treatment.concept is not None and number == 29
    if treatment.method == BASELINE:
        return True
    own = f"{sample.relation}@{sample.language}" == treatment.concept
    return number >= (1 if treatment.method == RANDOM else (treatment.k or 0) if own else 3)


def _said(treatment: Treatment, _: Sample) -> str:
    return " London" if treatment.method == BASELINE else " the same"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    masks = grid(CONCEPTS, (10, 20), seeds=3)
    more = [
        replace(masks[4], id="band", selection=BAND, band=(10, 20)),
        replace(masks[0], id="kept", selection=COMPLEMENT),
        *grid(["country_capital@de"], (10,)),
    ]
    directory = tmp_path_factory.mktemp("made-up") / "run"
    make_sweep(directory, [*masks, *more], _outcome, CONFIG, said=_said)
    path = directory / "samples.jsonl"
    # Log probabilities that differ from sample to sample.
    write_samples(
        path,
        [
            replace(
                sample, answer_logprob=-1 - len(sample.intervention) / 7 - sample.doc_id / 11 * sample.recall
            )
            for sample in read_samples(path)
        ],
    )
    write_perplexity(directory, [BASELINE, masks[0].id], lambda t, _: -3.0 if t == masks[0].id else -2.0)
    return directory


@pytest.fixture(scope="module")
def found(sweep: Path) -> Findings:
    return make_findings(sweep)


@pytest.fixture(scope="module")
def reported(
    sweep: Path, found: Findings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Path]]:
    directory = tmp_path_factory.mktemp("reported") / "run"
    shutil.copytree(sweep, directory)
    return directory, write_report(directory, found)


def _read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _written(directory: Path) -> dict[str, bytes]:
    names = ["deltas.csv", "deltas.parquet", "report.html"]
    paths: Iterable[Path] = [directory / name for name in names]
    paths = [*paths, *(directory / "tables").iterdir(), *(directory / "figures").iterdir()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def test_every_table_and_figure_is_written(reported: tuple[Path, list[Path]], found: Findings) -> None:
    directory, written = reported
    names = {str(path.relative_to(directory)) for path in written}
    assert names == set(_written(directory))
    tables = [table.name for table in found.tables if table.name != "deltas"]
    assert {name for name in names if name.startswith("tables/")} == {
        f"tables/{name}.{kind}" for name in tables for kind in ("csv", "md", "tex")
    }
    figures = [path for path in written if path.parent.name == "figures"]
    # `found` has every table; transfer too, for there are German masks.
    for table in DRAWN:
        own = [path for path in figures if path.stem == table or path.stem.startswith(f"{table}-")]
        assert {path.suffix for path in own} == {".svg", ".png"}, table
    for path in figures:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG\r\n")
    # A person can look at all of them.
    assert len(figures) <= 2 * 2 * len(DRAWN)


def test_the_same_findings_give_the_same_bytes(
    sweep: Path, reported: tuple[Path, list[Path]], found: Findings, tmp_path: Path
) -> None:
    again = tmp_path / "run"
    shutil.copytree(sweep, again)
    write_report(again, found)
    assert _written(again) == _written(reported[0])


def test_deltas_are_what_the_samples_say(sweep: Path, reported: tuple[Path, list[Path]]) -> None:
    rows = [row for row in _read(reported[0] / "deltas.csv") if row["facts"] == "all"]
    samples: dict[tuple[str, str, str], dict[str, Sample]] = {}
    for sample in read_samples(sweep / "samples.jsonl"):
        if sample.template == "completion":
            key = (sample.intervention, sample.relation, sample.language)
            samples.setdefault(key, {})[sample.fact_id] = sample
    assert len(rows) == len(samples) - len(RELATIONS) * 2
    for row in rows:
        before = samples[BASELINE, row["relation"], row["language"]]
        after = samples[row["treatment"], row["relation"], row["language"]]
        lost = [fact for fact in before if before[fact].recall > after[fact].recall]
        gained = [fact for fact in before if before[fact].recall < after[fact].recall]
        assert (int(row["n"]), int(row["lost"]), int(row["gained"])) == (30, len(lost), len(gained))
        change = mean(after[fact].answer_logprob - before[fact].answer_logprob for fact in before)
        assert float(row["logprob"]) == pytest.approx(change, rel=1e-5)
        if row["testable"] == "true":
            assert float(row["delta"]) == pytest.approx((len(gained) - len(lost)) / 30, abs=1e-6)
            assert float(row["loss"]) == pytest.approx(len(lost) / 27, abs=1e-6)
        else:
            assert row["delta"] == row["loss"] == row["p"] == ""
    assert len({row["logprob"] for row in rows}) > 10
    parquet = pq.read_table(reported[0] / "deltas.parquet").to_pylist()
    assert [row["lost"] for row in parquet if row["facts"] == "all"] == [int(row["lost"]) for row in rows]


def test_what_an_earlier_report_left_is_deleted_and_nothing_else(
    sweep: Path, found: Findings, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(sweep, directory)
    small = replace(found, tables=tuple(t for t in found.tables if t.name in ("recall", "curves", "deltas")))
    stale = ["tables/old.tex", "tables/masks.csv", "figures/deltas-old.png", "figures/curves-old.svg"]
    mine = ["tables/notes.txt", "figures/sketch.pdf", "masks/keep.csv", "summary.csv"]
    for name in [*stale, *mine]:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("x")
    write_report(directory, small)
    assert [name for name in stale if (directory / name).exists()] == []
    assert [name for name in mine if not (directory / name).exists()] == []
    write_report(directory, replace(small, tables=small.tables[:1]))
    assert not (directory / "deltas.csv").exists() and not (directory / "deltas.parquet").exists()
    assert (directory / "samples.jsonl").exists()


def test_a_baseline_alone_has_its_recall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_sweep(
        tmp_path / "run", [], _outcome, {"relations": RELATIONS, "languages": ["en", "de"]}
    )
    with pytest.raises(SystemExit) as exit_:
        main(["report", str(directory)])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert "recall without any mask" in printed
    assert f"wrote {directory}/tables/ (3 files)" in printed and f"wrote {directory}/report.html" in printed
    assert f"samples: {directory}/samples.jsonl" in printed
    line = next(line for line in printed.splitlines() if "thing_color" in line and " de " in line)
    assert " .33 [.17, .53] " in line and line.rstrip("│ ").endswith("no")
    rows = {(row["relation"], row["language"]): row for row in _read(directory / "tables" / "recall.csv")}
    assert len(rows) == 8
    assert float(rows["thing_color", "de"]["recall"]) == pytest.approx(1 / 3, abs=1e-6)
    assert float(rows["country_capital", "en"]["recall"]) == 0.9
    assert not (directory / "deltas.csv").exists()
    assert sorted(path.name for path in (directory / "tables").iterdir()) == [
        "recall.csv",
        "recall.md",
        "recall.tex",
    ]


def test_without_matplotlib_all_but_the_figures_is_written(
    sweep: Path,
    found: Findings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(sweep, directory)
    monkeypatch.setattr(write, "find_spec", lambda name: None)
    written = write_report(directory, found)
    assert not [path for path in written if path.suffix in (".svg", ".png")]
    assert (directory / "deltas.csv").exists() and (directory / "report.html").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "relbench: no figures: matplotlib is missing; install relbench-lm[plots]"


def _printed(found: Findings) -> str:
    console = Console(width=160, record=True, file=StringIO())
    for table in terminal_tables(found):
        console.print(table)
    return console.export_text()


def test_the_terminal_says_what_was_lost_and_what_cannot_be_tested(
    found: Findings,
) -> None:
    printed = _printed(found)
    assert (
        printed.index("m: 10 units off") < printed.index("m: 20 units off") < printed.index("methods: what")
    )
    line = next(
        line
        for line in printed[printed.index("m: 20 units off") :].splitlines()
        if "country_capital@en" in line
    )
    # 27 of 30 right before, 20 of them lost and fact 29 gained; 3 lost and one gained elsewhere; random masks
    # lose one.
    cells = [" ".join(cell.split()) for cell in line.strip("│ ").split("│")]
    assert cells[:4] == ["country_capital@en", "30", ".90 [.73, .98]", ".27 [.12, .46]"]
    assert cells[4].startswith("−.63 [") and cells[5:7] == ["−.07", "−.03"]
    assert cells[7].startswith("+.63 [")
    assert "random: mean of 3 masks of the same size" in printed


def test_untestable_targets_are_named_with_the_reason(tmp_path: Path) -> None:
    chosen = ["country_capital", "landmark_on_continent"]
    masks = grid([f"{relation}@en" for relation in chosen], (5,))
    directory = make_sweep(tmp_path / "run", masks, _outcome, {"relations": chosen}, n=21)
    path = directory / "samples.jsonl"
    write_samples(
        path,
        [replace(s, recall=0) if s.relation == chosen[1] and s.doc_id < 3 else s for s in read_samples(path)],
    )
    printed = _printed(make_findings(directory))
    line = next(line for line in printed.splitlines() if line.startswith(f"│ {chosen[1]}@en"))
    cells = [" ".join(cell.split()) for cell in line.strip("│ ").split("│")]
    assert cells[4:] == ["not testable", "−.14", "–", "–"]
    assert f"{chosen[1]}@en: not testable: 18 facts right at baseline, fewer than 20" in printed
