"""The report's page: what is in the file, and in a browser what a reader sees and can do."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from relbench.findings import Findings, make_findings
from relbench.reports.formats import show
from relbench.reports.page import facts, tables, write_page
from relbench.reports.page.packing import inert_json, pack_bits, pack_changes, pack_integers
from relbench.samples import BASELINE, Sample, read_samples
from relbench.tables import Column, Interval, make_table
from relbench.treatments import RANDOM, Treatment
from tests.browser import PHONE, Browser
from tests.relbench.sweeps import grid, make_sweep

RELATIONS = ["country_capital", "company_hq", "landmark_on_continent", "thing_color"]
CONCEPTS = [f"{relation}@en" for relation in RELATIONS]
CONFIG = {
    "relations": RELATIONS,
    "languages": ["en", "de"],
    "methods": [{"id": "m", "name": "average-precision"}],
    "controls": {"seeds": 3},
}
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><style>rect{fill:red}</style>'
    '<rect width="40" height="20" style="stroke: black"/></svg>'
)


def _outcome(treatment: Treatment, sample: Sample) -> bool:
    """Baseline: the first 27 right, of German colours 10. A mask loses more of its own relation than of others, no
    two relations equally many, and gains fact 29; random masks lose their seed's number of facts."""
    number = sample.doc_id
    if sample.relation == "thing_color" and sample.language == "de":
        return number < 10
    if number >= 27:
        return treatment.concept is not None and number == 29
    if treatment.method == BASELINE:
        return True
    if treatment.method == RANDOM:
        return number >= (treatment.seed or 0)
    place = RELATIONS.index(sample.relation)
    own = f"{sample.relation}@{sample.language}" == treatment.concept
    return number >= ((treatment.k or 0) + place if own else place)


def _said(treatment: Treatment, sample: Sample) -> str:
    return " London" if treatment.method == BASELINE else " the same"


class Made(NamedTuple):
    """A sweep, what was found in it, and its page."""

    directory: Path
    findings: Findings
    page: Path


def _made(
    directory: Path, treatments: Sequence[Treatment], figures: Sequence[Path] = (), **more: Any
) -> Made:
    make_sweep(directory, treatments, _outcome, {**CONFIG, **more}, said=_said)
    findings = make_findings(directory)
    return Made(directory, findings, write_page(directory, findings, figures))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("page")
    figures = [folder / "curves.png", folder / "curves.svg", folder / "other.svg"]
    for path in figures:
        path.write_text(SVG)
    return _made(folder / "run", grid(CONCEPTS, (10, 20), seeds=3), figures)


def _data(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


class _Elements(HTMLParser):
    """Every element with its attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style") and data.strip():
            self.inside.append((self.found[-1][1].get("type") or self.found[-1][0], data))


# The file.


def test_the_page_names_nothing_outside_itself(made: Made) -> None:
    elements = _Elements(made.page.read_text(encoding="utf-8"))
    for tag, attributes in elements.found:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} has {name}"
            assert name != "style", f"{tag} has a style that the policy forbids"
            if name in ("src", "href"):
                assert value and value.startswith(("#", "data:image/")), f"{tag} {name}={value}"


def test_the_policy_allows_its_own_script_and_style_and_nothing_else(made: Made) -> None:
    elements = _Elements(made.page.read_text(encoding="utf-8"))
    (policy,) = (a["content"] for tag, a in elements.found if "http-equiv" in a)
    assert policy is not None and "unsafe" not in policy
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    inside = dict(elements.inside)
    for kind in ("script", "style"):
        digest = base64.b64encode(sha256(inside[kind].encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"


def test_the_same_sweep_gives_the_same_bytes(made: Made, tmp_path: Path) -> None:
    again = _made(tmp_path / "again", grid(CONCEPTS, (10, 20), seeds=3))
    first = again.page.read_bytes()
    # When and how long it ran does not show.
    (again.directory / "run.json").write_text('{"started": "2031-01-02", "seconds": {"score units": 77.25}}')
    assert write_page(again.directory, again.findings, []).read_bytes() == first
    assert not list(again.directory.glob(".*.tmp"))


def test_a_table_is_packed_so_that_numbers_sort_as_values_do() -> None:
    columns = (
        Column("name", "name", "text"),
        Column("loss", "loss", "share"),
        Column("loss_interval", "interval", "interval", of="loss"),
        Column("k", "units", "count"),
    )
    rows = [
        ("b", 0.5, Interval(0.25, 0.75), 1000),
        ("A", None, None, 20),
        ("c", 0.001, Interval(0.0, float("inf")), 3),
    ]
    packed = tables.page_table(make_table("masks", "t", "c", columns, rows))
    shown = {column["key"]: column["shown"] for column in packed["columns"]}
    assert shown["name"] == ["A", "b", "c"]
    assert shown["loss"] == [".001", ".50"]
    assert shown["loss_interval"] == ["[.00, ∞]", "[.25, .75]"]
    assert shown["k"] == ["3", "20", "1,000"]
    index = packed["columns"][1]["index"]
    assert list(np.frombuffer(base64.b64decode(index["bytes"]), dtype=f"<u{index['width']}")) == [2, 0, 1]


@pytest.mark.parametrize(("largest", "width"), [(255, 1), (256, 2), (65535, 2), (65536, 4)])
def test_integers_take_as_many_bytes_as_the_largest_needs(largest: int, width: int) -> None:
    packed = pack_integers([0, largest], largest)
    assert packed["width"] == width
    assert base64.b64decode(packed["bytes"]) == bytes(width) + largest.to_bytes(width, "little")


def test_bits_and_changes_are_packed_as_they_are_read() -> None:
    groups = [[1, 0, 0, 0, 0, 0, 0, 0, 1], [0, 1]]
    assert base64.b64decode(pack_bits(groups)) == bytes([1, 1, 2])
    assert base64.b64decode(pack_bits([])) == b""
    changes = np.frombuffer(base64.b64decode(pack_changes([-1.234, 0.006, -1e9, float("nan")])), "<i2")
    assert changes.tolist() == [-123, 1, -32700, -32768]


def test_json_in_the_page_is_inert() -> None:
    hostile = {"</script><!--<script>": "\u2028\u2029&amp;<img onerror=alert(1)>"}
    text = inert_json(hostile)
    assert json.loads(text) == hostile
    assert not set("<>&\u2028\u2029") & set(text)


def test_what_does_not_fit_is_left_out_and_said_so(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = made.findings.table("deltas")
    headline = [row for row in deltas.rows if row["facts"] == "headline"]
    monkeypatch.setitem(tables.VALUES, "deltas", len(deltas.columns) * len(headline))
    packed = tables.page_table(deltas)
    assert packed["n"] == len(headline)
    assert f"{len(headline):,} of {len(deltas.rows):,} rows" in packed["note"]
    assert "deltas.csv" in packed["note"]
    monkeypatch.setattr(tables, "OTHER_VALUES", len(made.findings.table("masks").columns) * 2)
    assert tables.page_table(made.findings.table("masks"))["n"] == 2
    monkeypatch.setattr(facts, "CHANGES", 10)
    monkeypatch.setattr(facts, "QUESTIONS", 10)
    monkeypatch.setattr(facts, "CONTINUATIONS", 10)
    everything = len(read_samples(made.directory / "samples.jsonl"))
    monkeypatch.setattr(facts, "ANSWERS", everything // 2)
    copy = shutil.copytree(made.directory, tmp_path / "copy")
    data = _data(write_page(copy, made.findings, []))
    notes = " ".join(data["facts"]["notes"])
    for what in ("log probability", "prompts", "what the model said", "random masks", "after the first"):
        assert what in notes
    assert not any("change" in mask or "said" in mask for mask in data["facts"]["masks"].values())
    assert not any(name.startswith(RANDOM) for name in data["facts"]["masks"])
    assert all(prompt is None for one in data["facts"]["concepts"] for prompt in one["prompt"])


def test_figures_too_large_for_a_page_are_named(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relbench.reports.page.write.FIGURES", len(SVG))
    copy = make_sweep(made.directory.parent / "small", [], lambda *_: True, CONFIG)
    page = write_page(copy, make_findings(copy), sorted(made.directory.parent.glob("*.svg")))
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/svg+xml") == 1
    assert "Figures that lie beside it only: other.svg." in text


# In a browser.


@pytest.fixture
def page(browser: Browser, made: Made) -> Browser:
    browser.open(made.page)
    return browser


def _show_all(page: Browser, table: str) -> None:
    while more := page.visible(f"#{table} .more"):
        more[0].click()


def _column(page: Browser, table: str, key: str) -> list[str]:
    """What a column shows in every row, without intervals."""
    _show_all(page, table)
    found: list[str] = page.run(
        """const head = [...document.querySelectorAll(`#${arguments[0]} thead th`)];
        const place = head.findIndex((cell) => cell.dataset.key === arguments[1]);
        return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].map(
            (line) => line.children[place].firstChild.textContent);""",
        table,
        key,
    )
    return found


def _rows(made: Made, table: str, **wanted: Any) -> list[Mapping[str, Any]]:
    rows = made.findings.table(table).rows
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _words(row: Mapping[str, Any], key: str) -> str:
    return str(row[key]).replace("_", " ")


@pytest.mark.browser
def test_it_opens_from_disk_without_a_complaint_or_a_request(page: Browser, made: Made) -> None:
    assert page.run("return document.documentElement.dataset.ready") == "yes"
    assert page.complaints == []
    assert page.requests[0] == made.page.resolve().as_uri()
    assert all(url.startswith("data:") for url in page.requests[1:])
    assert page.driver.title == "relbench: made-up"
    for table in made.findings.tables:
        assert page.visible(f"#{table.name} tbody tr"), table.name
        assert page.visible(f"nav a[href='#{table.name}']"), table.name


@pytest.mark.browser
def test_figures_are_drawn_with_their_own_styles(page: Browser) -> None:
    sizes = page.run("return [...document.images].map((image) => [image.complete, image.naturalWidth])")
    # The SVG rather than the PNG of one figure, and one that no table is about.
    assert sizes == [[True, 40], [True, 40]]
    assert len(page.visible("#curves figure")) == 1
    assert page.complaints == []


@pytest.mark.browser
def test_the_summary_says_what_was_run(page: Browser) -> None:
    text = page.one("#about").text
    for what in ("made-up", "240 facts", "7 testable", "m: average-precision", "English (en), German (de)"):
        assert what in text
    assert "5 examples before each question" in text
    assert re.search(r"samples\.jsonl, SHA-256 [0-9a-f]{12}", text)


@pytest.mark.browser
def test_columns_sort_both_ways_with_rows_without_a_value_last(page: Browser, made: Made) -> None:
    rows = made.findings.table("deltas").rows
    known = [row["loss"] for row in rows if row["loss"] is not None]
    missing = ["–"] * (len(rows) - len(known))
    assert known and missing
    assert _column(page, "deltas", "loss") == [show(row["loss"], "share") for row in rows]
    for order, descending in (("ascending", False), ("descending", True), ("ascending", False)):
        page.one("#deltas th[data-key=loss] button").click()
        assert page.one("#deltas th[data-key=loss]").get_attribute("aria-sort") == order
        expected = [show(loss, "share") for loss in sorted(known, reverse=descending)]
        assert _column(page, "deltas", "loss") == [*expected, *missing]
    page.one("#deltas th[data-key=k] button").click()
    assert page.one("#deltas th[data-key=loss]").get_attribute("aria-sort") == "none"


@pytest.mark.browser
def test_columns_sort_by_keyboard(page: Browser, made: Made) -> None:
    from selenium.webdriver import Keys

    page.run("document.querySelector('#masks th[data-key=target_loss] button').focus()")
    page.press(Keys.ENTER)
    page.press(Keys.SPACE)
    losses = sorted((row["target_loss"] for row in made.findings.table("masks").rows), reverse=True)
    assert _column(page, "masks", "target_loss") == [show(loss, "share") for loss in losses]


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "value", "table", "kept"),
    [
        ("language", "de", "deltas", lambda row: row["language"] == "de"),
        ("relation", "thing_color", "deltas", lambda row: row["relation"] == "thing_color"),
        ("relation", "thing_color", "versatility", lambda row: row["other"] == "thing_color"),
        ("masked", "company_hq", "deltas", lambda row: row["masked"] == "company_hq"),
        ("k", "20", "deltas", lambda row: row["k"] == 20),
        ("method", "random", "deltas", lambda row: row["method"] == "random"),
        # A table without such a column shows all.
        ("language", "de", "masks", lambda row: True),
    ],
)
def test_filters_keep_the_rows_that_they_name(
    page: Browser, made: Made, name: str, value: str, table: str, kept: Callable[[Mapping[str, Any]], bool]
) -> None:
    page.choose(f"#filters [name={name}]", value)
    every = made.findings.table(table).rows
    expected = [row["treatment"] for row in every if kept(row)]
    assert expected
    assert _column(page, table, "treatment") == expected
    count = f"{len(expected)} of {len(every)} rows" if len(expected) < len(every) else f"{len(every)} rows"
    assert page.texts(f"#{table} .status[role=status]") == [count]
    page.one("#filters button[type=reset]").click()
    assert _column(page, table, "treatment") == [row["treatment"] for row in every]


@pytest.mark.browser
def test_filters_join_and_can_leave_nothing(page: Browser, made: Made) -> None:
    page.choose("#filters [name=masked]", "thing_color")
    page.choose("#filters [name=k]", "10")
    rows = _rows(made, "deltas", masked="thing_color", k=10)
    assert _column(page, "deltas", "treatment") == [row["treatment"] for row in rows]
    page.choose("#filters [name=method]", "random")
    assert page.visible("#deltas tbody tr") == []
    assert page.texts("#deltas .status[role=status]")[0].startswith("0 of ")


@pytest.mark.browser
def test_the_heat_map_shows_the_changes(page: Browser, made: Made) -> None:
    found = page.run(
        "return [...document.querySelectorAll('.cell')].map("
        "(cell) => [cell.dataset.masked, cell.dataset.evaluated, cell.textContent])"
    )
    # At 10 units less than half of the targets is lost.
    rows = _rows(made, "deltas", facts="headline", language="en", k=20, method="m")
    cells = {(f"{r['masked']}@en", f"{r['relation']}@en"): show(r["delta"], "delta") for r in rows}
    drawn = {(masked, evaluated): text for masked, evaluated, text in found if masked != RANDOM}
    assert drawn == cells
    random = {evaluated: text for masked, evaluated, text in found if masked == RANDOM}
    # Three seeds, which lose 0, 1 and 2 of 30 facts.
    assert random == {name: "−.03" for name in CONCEPTS}


@pytest.mark.browser
def test_the_heat_map_shows_what_is_chosen(page: Browser, made: Made) -> None:
    page.choose("#map-controls [name=measure]", "loss")
    page.choose("#map-controls [name=k]", "10")
    page.choose("#map-controls [name=language]", "de")
    rows = {
        (f"{r['masked']}@en", f"{r['relation']}@de"): r
        for r in _rows(made, "deltas", facts="headline", language="de", k=10, method="m")
    }
    cells = [cell for cell in page.all(".cell") if cell.get_attribute("data-masked") != RANDOM]
    assert len(cells) == len(rows) == 16
    for cell in cells:
        row = rows[str(cell.get_attribute("data-masked")), str(cell.get_attribute("data-evaluated"))]
        assert cell.text == show(row["loss"], "share")
        hatched = "untestable" in str(cell.get_attribute("class"))
        assert hatched is (row["relation"] == "thing_color")


@pytest.mark.browser
def test_colours_are_centred_at_zero_and_differ_by_sign(page: Browser) -> None:
    page.choose("#map-controls [name=measure]", "gain")

    def parts(cell: str) -> tuple[str, int]:
        side = page.run(f"return document.querySelector({cell!r}).style.getPropertyValue('--side')")
        share = page.run(f"return document.querySelector({cell!r}).style.getPropertyValue('--share')")
        return side, int(str(share).rstrip("%"))

    own = ".cell.own[data-masked='country_capital@en']"
    assert parts(own) == ("var(--positive)", 33)
    page.choose("#map-controls [name=measure]", "delta")
    assert parts(own) == ("var(--negative)", 63)
    zero = page.style(".cell[data-masked=random]", "background-color")
    assert zero != page.style(own, "background-color")


@pytest.mark.browser
def test_pointing_at_a_cell_shows_its_value(page: Browser, made: Made) -> None:
    (row,) = _rows(
        made,
        "deltas",
        treatment="m.company_hq@en.k20",
        relation="thing_color",
        language="en",
        facts="headline",
    )
    cell = page.one(".cell[data-masked='company_hq@en'][data-evaluated='thing_color@en']")
    assert not page.visible("#tip")
    page.hover(cell)
    tip = page.one("#tip").text
    assert f"{show(row['delta'], 'delta')} {show(row['delta_interval'], 'interval', 'delta')}" in tip
    assert f"{row['lost']} of {row['right']} right ones lost, {row['gained']} gained" in tip
    assert cell.get_attribute("aria-label") == tip
    page.hover(page.one("#map-title"))
    assert not page.visible("#tip")


@pytest.mark.browser
def test_the_heat_map_is_read_and_opened_by_keyboard(page: Browser) -> None:
    from selenium.webdriver import Keys

    assert len(page.all(".cell[tabindex='0']")) == 1, "one stop for the tabulator"
    page.run("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    at = "return [document.activeElement.dataset.masked, document.activeElement.dataset.evaluated]"
    assert page.run(at) == ["country_capital@en", "country_capital@en"]
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert page.run(at) == ["landmark_on_continent@en", "company_hq@en"]
    page.press(Keys.END, Keys.ARROW_RIGHT)
    assert page.run(at) == ["landmark_on_continent@en", "thing_color@en"]
    assert "on thing color (en)" in page.one("#tip").text
    assert "on thing color (en)" in page.one("#readout").text
    page.press(Keys.ENTER)
    assert page.one("#facts-title").text == "Facts of thing color (en)"
    page.press(Keys.ESCAPE)
    assert not page.visible("#facts")
    assert page.run(at) == ["landmark_on_continent@en", "thing_color@en"], "the focus is back"


@pytest.mark.browser
def test_a_cell_opens_its_facts_and_their_numbers_are_the_tables(page: Browser, made: Made) -> None:
    (row,) = _rows(
        made,
        "deltas",
        treatment="m.company_hq@en.k20",
        relation="company_hq",
        language="en",
        facts="headline",
    )
    page.one(".cell.own[data-masked='company_hq@en']").click()
    summary = page.one("#facts-summary").text
    assert f"Recall {show(row['recall_before'], 'share')} (27 of 30) before" in summary
    assert f"{show(row['recall_after'], 'share')} (7 of 30) after" in summary
    assert f"Loss {show(row['loss'], 'share')} ({row['lost']} of {row['right']})" in summary
    assert f"gain {show(row['gain'], 'share')} ({row['gained']} of 3)" in summary
    samples = {
        (s.intervention, s.fact_id): s
        for s in read_samples(made.directory / "samples.jsonl")
        if (s.relation, s.language) == ("company_hq", "en")
    }
    lost = {
        fact
        for intervention, fact in samples
        if intervention == BASELINE
        and samples[BASELINE, fact].recall
        and not samples["m.company_hq@en.k20", fact].recall
    }
    lines = page.all("#facts-table tr[data-outcome=lost]")
    assert {line.get_attribute("data-fact") for line in lines} == lost
    assert "right → wrong" in lines[0].text and "London" in lines[0].text and "the same" in lines[0].text
    page.choose("#facts [name=outcome]", "gained")
    assert len(page.all("#facts-table tbody tr")) == row["gained"] == 1
    page.one("#facts-close").click()
    assert not page.visible("#facts")


@pytest.mark.browser
def test_every_row_of_the_changes_agrees_with_its_facts(page: Browser, made: Made) -> None:
    for row in made.findings.table("deltas").rows:
        counts = page.run(
            """const [mask, relation, language, subset] = arguments;
            const facts = answersOf(mask, conceptNumber(relation, language)).filter(SUBSETS[subset].keep);
            const count = (outcome) => facts.filter((fact) => fact.outcome === outcome).length;
            return [facts.length, count("lost") + count("kept"), count("lost"), count("gained")];""",
            row["treatment"],
            row["relation"],
            row["language"],
            row["facts"],
        )
        assert counts == [row["n"], row["right"], row["lost"], row["gained"]]


@pytest.mark.browser
@pytest.mark.parametrize(
    ("table", "wanted", "title", "said"),
    [
        (
            "recall",
            {"relation": "thing_color", "language": "de"},
            "thing color (de)",
            "Recall .33 (10 of 30).",
        ),
        ("masks", {"treatment": "m.thing_color@en.k10"}, "thing color (en)", "Loss .48 (13 of 27)"),
        (
            "deltas",
            {"treatment": "random.seed2.k10", "relation": "company_hq", "language": "de", "facts": "all"},
            "company hq (de)",
            "Loss .07 (2 of 27)",
        ),
    ],
)
def test_rows_open_their_facts(
    page: Browser, made: Made, table: str, wanted: Mapping[str, Any], title: str, said: str
) -> None:
    _show_all(page, table)
    rows = made.findings.table(table).rows
    (number,) = (i for i, row in enumerate(rows) if all(row[key] == value for key, value in wanted.items()))
    button = page.one(f"#{table} tr[data-row='{number}'] .open")
    page.run("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    assert page.one("#facts-title").text == f"Facts of {title}"
    assert said in page.one("#facts-summary").text


@pytest.mark.browser
def test_a_methods_row_leads_to_its_masks(page: Browser, made: Made) -> None:
    page.run("document.querySelector('#curves tbody tr .open').click()")
    first = made.findings.table("curves").rows[0]
    masks = _rows(made, "masks", method=first["method"], k=first["k"])
    assert _column(page, "masks", "treatment") == [row["treatment"] for row in masks]
    assert page.run("return document.activeElement.closest('section').id") == "masks"


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_scrolls_tables_in_their_boxes_and_never_the_page(
    browser: Browser, made: Made, dark: bool
) -> None:
    browser.open(made.page, size=PHONE, dark=dark)
    assert browser.run("return innerWidth") == 390
    assert browser.overflow == 0
    wide = browser.run(
        "const box = document.querySelector('#deltas .box'); return box.scrollWidth > box.clientWidth"
    )
    assert wide is True
    for summary in browser.all("details:not([open]) > summary"):
        browser.run("arguments[0].click()", summary)
    assert browser.overflow == 0
    browser.run("document.querySelector('.cell').click()")
    assert browser.one("#facts").is_displayed()
    assert browser.overflow == 0
    right = browser.run("return document.getElementById('facts').getBoundingClientRect().right")
    assert right <= 390
    assert browser.complaints == []


# Ink and ground of an element, painted, so that whatever notation they have becomes red, green and blue.
_PAINTED = """const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const style = getComputedStyle(arguments[0]);
return [style.color, style.backgroundColor].map((colour) => {
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return `rgb(${[...context.getImageData(0, 0, 1, 1).data].slice(0, 3).join(", ")})`;
});"""


def _luminance(colour: str) -> float:
    """Relative luminance of WCAG 2 of `rgb(r, g, b)`."""
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.browser
def test_dark_colours_follow_the_reader_and_the_button(browser: Browser, made: Made) -> None:
    paper = {}
    for dark in (False, True):
        browser.open(made.page, dark=dark)
        paper[dark] = _luminance(browser.style("body", "background-color"))
        for element in ("body", ".status", "td .ci", "nav a", "dt"):
            ink = _luminance(browser.style(element, "color"))
            light, deep = max(ink, paper[dark]), min(ink, paper[dark])
            assert (light + 0.05) / (deep + 0.05) >= 4.5, f"{element} is hard to read"
        for cell in browser.all(".cell"):
            pair = browser.run(_PAINTED, cell)
            light, deep = max(map(_luminance, pair)), min(map(_luminance, pair))
            assert (light + 0.05) / (deep + 0.05) >= 4.4, f"{cell.text} is hard to read"
    assert paper[False] > 0.8 and paper[True] < 0.1
    button = browser.one("#theme")
    for expected in (False, True):
        button.click()
        assert _luminance(browser.style("body", "background-color")) == paper[expected]
        assert button.get_attribute("aria-pressed") == str(expected).lower()


@pytest.mark.browser
def test_printed_pages_have_no_controls(browser: Browser, made: Made) -> None:
    browser.open(made.page, print_=True)
    assert browser.visible("#filters, nav, #theme, #map-controls, .more") == []
    assert browser.visible("#masks table")


@pytest.mark.browser
def test_hostile_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    hostile = "</script>\u2028<img src=x onerror=\"document.title='taken'\"><!--"
    treatments = [replace(one, method=hostile) for one in grid(CONCEPTS, (20,), seeds=1)[:-1]]
    directory = make_sweep(
        tmp_path / "run",
        treatments,
        _outcome,
        {**CONFIG, "model": hostile, "limit": 30},
        said=lambda *_: hostile,
    )
    page = write_page(directory, make_findings(directory), [])
    browser.open(page)
    assert browser.run("return document.documentElement.dataset.ready") == "yes"
    browser.one(".cell.own[data-masked='company_hq@en']").click()
    assert hostile in browser.texts("#facts-table td.said")[0]
    assert browser.all("img") == []
    assert browser.driver.title == f"relbench: {hostile}"
    assert browser.texts("h1") == [hostile]
    assert any(f"method: {hostile};" in text for text in browser.texts(".alike"))
    assert browser.complaints == []


@pytest.mark.browser
def test_a_baseline_alone_has_a_page(browser: Browser, tmp_path: Path) -> None:
    baseline = _made(tmp_path / "run", [], methods=[])
    browser.open(baseline.page)
    assert browser.complaints == []
    assert browser.all("#map") == []
    assert "none: the baseline alone" in browser.one("#about").text
    browser.all("#recall .open")[0].click()
    row = baseline.findings.table("recall").rows[0]
    assert f"Recall {show(row['recall'], 'share')} (27 of 30)." in browser.one("#facts-summary").text
