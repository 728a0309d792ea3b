"""Findings of made-up sweep directories: every table, with numbers that were put there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from interventions.errors import UserError
from relbench.findings import Findings, make_findings
from relbench.samples import BASELINE, Sample
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
    """Baseline: all right but three facts. A mask loses k facts of its relation (half as many in German or asked
    otherwise), 3 of others; it makes fact 29 right. Random masks lose one."""
    number, concept = sample.doc_id, f"{sample.relation}@{sample.language}"
    if sample.relation == "thing_color" and sample.language == "de":
        return number < 10
    if number >= 27:
        return treatment.concept is not None and number == 29
    if treatment.method == BASELINE:
        return True
    k = treatment.k or 0
    if treatment.method == RANDOM:
        lost = 20 if treatment.selection == COMPLEMENT else 1
    elif treatment.selection == COMPLEMENT:
        lost = 9
    elif treatment.selection == BAND:
        lost = 2
    elif concept == treatment.concept:
        lost = k if sample.template == "completion" else k // 2
    elif sample.relation == str(treatment.concept).partition("@")[0]:
        lost = k // 2
    else:
        lost = 3
    return number >= lost


def _said(treatment: Treatment, sample: Sample) -> str:
    return " London" if treatment.method == BASELINE else " the same"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    masks = grid(CONCEPTS, (10, 20), seeds=10)
    first = masks[0]
    more = [
        replace(masks[4], id="band", selection=BAND, band=(10, 20)),
        replace(masks[4], id="band1", selection=BAND, band=(0, 10), k=10),
        replace(first, id="kept", selection=COMPLEMENT),
        *(
            replace(c, id=f"kept.{c.id}", selection=COMPLEMENT)
            for c in masks
            if (c.method, c.k) == (RANDOM, 10)
        ),
        *grid(["country_capital@de"], (10,)),
    ]
    directory = tmp_path_factory.mktemp("made-up") / "run"
    make_sweep(directory, [*masks, *more], _outcome, CONFIG, said=_said)
    harmed = {first.id: -3.0}
    write_perplexity(directory, [BASELINE, first.id], lambda t, _: harmed.get(t, -2.0))
    return make_findings(directory)


def _rows(found: Findings, table: str, **wanted: object) -> list[dict[str, object]]:
    return [
        dict(row)
        for row in found.table(table).rows
        if all(row[key] == value for key, value in wanted.items())
    ]


def test_every_table_is_there_once_and_says_how_to_read_it(found: Findings) -> None:
    assert [table.name for table in found.tables] == [
        "recall",
        "methods",
        "curves",
        "masks",
        "cumulativity",
        "bands",
        "versatility",
        "interference",
        "transfer",
        "layers",
        "sufficiency",
        "templates",
        "continuations",
        "flips",
        "perplexity",
        "deltas",
    ]
    assert all(table.title and table.caption and table.rows for table in found.tables)
    with pytest.raises(KeyError):
        found.table("none")


def test_recall_says_what_is_testable(found: Findings) -> None:
    (capital,) = _rows(found, "recall", relation="country_capital", language="en")
    assert (capital["right"], capital["testable"], capital["why_not"]) == (27, True, "")
    (colour,) = _rows(found, "recall", relation="thing_color", language="de")
    assert colour["testable"] is False
    assert "fewer than 20" in str(colour["why_not"])


def test_masks_rest_on_held_out_relations_of_other_types(found: Findings) -> None:
    (row,) = _rows(found, "masks", treatment="m.country_capital@en.k20")
    assert row["target_loss"] == pytest.approx(20 / 27)
    # company_hq has cities too, landmark_on_continent is contrasted, thing_color is held out.
    assert (row["basis"], row["off_target_relations"]) == ("held-out", 1)
    assert row["held_out_loss"] == row["contrasted_loss"] == row["same_type_loss"] == pytest.approx(3 / 27)
    assert row["selectivity"] == pytest.approx(17 / 27)
    assert (row["random_masks"], row["random_selectivity"]) == (10, 0.0)
    (curve,) = [c for c in found.curves if (c.method, c.language) == ("m", "all")]
    # From 10/27 to 20/27 lost, one half is 3.5 of 10 on the way.
    assert curve.k_at_half == pytest.approx(10 * 2**0.35)
    (method,) = _rows(found, "methods", method="m", language="all")
    assert method["off_target_at_half"] == pytest.approx(3 / 27)
    (random,) = _rows(found, "methods", method=RANDOM, language="all")
    assert random["off_target_at_half"] is None


def test_methods_and_curves_are_given_for_each_masked_language_too(found: Findings) -> None:
    # In German one mask of one size was made: only the random masks have all sizes there.
    expected = [("m", "all"), ("m", "en"), (RANDOM, "all"), (RANDOM, "en"), (RANDOM, "de")]
    for table in ("methods", "curves"):
        assert (
            list(dict.fromkeys((row["method"], row["language"]) for row in _rows(found, table))) == expected
        )
    whole, english = (_rows(found, "methods", method="m", language=name)[0] for name in ("all", "en"))
    assert {**whole, "language": "en"} == english


def test_untestable_relations_have_no_loss_to_over_read(found: Findings) -> None:
    rows = _rows(found, "deltas", relation="thing_color", language="de", facts="headline")
    assert rows
    for row in rows:
        assert row["testable"] is False
        assert (row["loss"], row["loss_interval"], row["delta"], row["p"], row["p_adjusted"]) == (None,) * 5
        assert (row["n"], row["right"], row["recall_before"]) == (30, 10, 1 / 3)


def test_properties(found: Findings) -> None:
    concept = {"masked": "country_capital", "masked_language": "en"}
    assert [row["k"] for row in _rows(found, "cumulativity", **concept)] == [10, 20]
    alone, together = _rows(found, "bands", **concept, k=20)
    assert (alone["bands"], alone["only_whole"], alone["only_whole_share"]) == ("(10, 20]", 18, 0.9)
    assert (together["n_bands"], together["only_whole"]) == (2, 18)
    (pair,) = _rows(found, "versatility", **concept, k=10, other="thing_color")
    assert (pair["loss_of_other"], pair["loss_under_other"]) == (3 / 27, 3 / 27)
    assert pair["expected"] == 1.0
    transfer = _rows(found, "transfer", **concept, k=10, language="de")[0]
    assert (transfer["own_loss"], transfer["loss"], transfer["native_loss"]) == (10 / 27, 5 / 27, 10 / 27)
    gain = _rows(
        found, "interference", **concept, k=20, selection="top-k", relation="company_hq", language="en"
    )[0]
    assert (gain["wrong"], gain["gained"], gain["random_gain"]) == (3, 1, 0.0)
    assert str(gain["facts"]).startswith("company_hq.")
    (kept,) = _rows(found, "sufficiency")
    assert (kept["kept"], kept["random_masks"]) == (pytest.approx(18 / 27), 10)
    assert kept["random_kept"] == pytest.approx(7 / 27)
    asked = _rows(found, "templates", **concept, k=20)[0]
    assert (asked["template"], asked["loss"], asked["main_loss"]) == ("question", 10 / 27, 20 / 27)
    assert sum(int(str(row["units"])) for row in _rows(found, "layers", **concept, k=10)) == 10


def test_what_is_said_instead(found: Findings) -> None:
    (row,) = _rows(
        found,
        "continuations",
        treatment="m.country_capital@en.k20",
        relation="country_capital",
        language="en",
    )
    assert (row["n"], row["flip"], row["article_or_filler"], row["other"]) == (20, "lost", 1.0, 0.0)
    flip = _rows(found, "flips", treatment="m.country_capital@en.k20", language="en")[0]
    assert (flip["before"], flip["was"], flip["after"]) == (" London", "accepted answer", " the same")


def test_perplexity_sets_the_relations_own_sentences_apart(found: Findings) -> None:
    rows = {row["text"]: row for row in _rows(found, "perplexity")}
    assert set(rows) == {"neutral text", "sentences of the masked relation", "sentences of other relations"}
    assert rows["neutral text"]["ratio"] == pytest.approx(2.718, abs=1e-3)
    assert rows["neutral text"]["documents"] == 2


def test_a_baseline_alone_has_its_recall(tmp_path: Path) -> None:
    directory = make_sweep(tmp_path / "run", [], lambda *_: True, {"relations": RELATIONS})
    assert [table.name for table in make_findings(directory).tables] == ["recall"]


def test_the_same_directory_gives_the_same_findings(tmp_path: Path) -> None:
    config = {"relations": RELATIONS, "methods": ["average-precision"]}
    directory = make_sweep(
        tmp_path / "run", grid(CONCEPTS, (10,), method="average-precision"), _outcome, config
    )
    first = make_findings(directory)
    assert first == make_findings(directory)
    # Its negatives are all other relations, none is held out.
    assert {row["basis"] for row in first.table("masks").rows} == {"contrasted"}


def test_without_contrast_every_relation_is_held_out(tmp_path: Path) -> None:
    plain = {"id": "m", "name": "log-probability-increase", "options": {"contrast": "none"}}
    directory = make_sweep(
        tmp_path / "run", grid(CONCEPTS, (10,)), _outcome, {"relations": RELATIONS, "methods": [plain]}
    )
    assert {row["basis"] for row in make_findings(directory).table("masks").rows} == {"held-out"}


def test_what_is_no_finished_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a sweep directory"):
        make_findings(tmp_path)
    treatments = grid(CONCEPTS, (10,))
    directory = make_sweep(tmp_path / "run", treatments, _outcome, {"relations": RELATIONS})
    lines = (directory / "samples.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["intervention"] != treatments[1].id]
    (directory / "samples.jsonl").write_text("".join(kept))
    with pytest.raises(UserError, match=f"no samples of {treatments[1].id}"):
        make_findings(directory)
    (directory / "samples.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match="do not pair"):
        make_findings(directory)
    (directory / "samples.jsonl").write_text("".join(lines))
    (directory / "perplexity.jsonl").write_text('{"treatment": "baseline"}\n')
    with pytest.raises(UserError, match="perplexity file"):
        make_findings(directory)
