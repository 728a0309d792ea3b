"""Tables as CSV, Parquet, Markdown and LaTeX, read back by other readers."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from markdown_it import MarkdownIt

from relbench.reports.csv import inert, write_csv
from relbench.reports.flat import flat_columns
from relbench.reports.latex import escape, latex
from relbench.reports.markdown import markdown
from relbench.reports.parquet import write_parquet
from relbench.reports.printed import printed
from relbench.tables import Column, Table, make_table
from tests.relbench.reports.tables import NASTY, made_up

FILE_COLUMNS = [
    "text", "mode", "n", "loss", "loss_low", "loss_high", "delta", "expected", "expected_low", "expected_high",
    "p", "testable", "empty",
]  # fmt: skip


@pytest.fixture(scope="module")
def table() -> Table:
    return made_up()


def test_csv_has_raw_numbers_and_a_column_for_each_bound(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    write_csv(path, table)
    read = pd.read_csv(path)
    assert list(read) == FILE_COLUMNS
    assert list(read["n"]) == table.column("n")
    assert list(read["delta"]) == pytest.approx(table.column("delta"), rel=1e-5)
    assert list(read["p"]) == pytest.approx(table.column("p"), rel=1e-5)
    assert pd.isna(read["loss_low"][0]) and read["loss_low"][1] == 0.125
    assert read["loss_high"][1] == inf
    assert list(read["testable"]) == table.column("testable")
    assert read["empty"].isna().all()


def test_no_text_in_a_csv_is_a_formula(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    write_csv(path, table)
    with open(path, encoding="utf-8", newline="") as file:
        read = [row["text"] for row in csv.DictReader(file)]
    assert not [text for text in read if text.strip()[0] in "=+-@＝＋－＠"]
    # An apostrophe is all that is added.
    assert [text.removeprefix("'") for text in read] == NASTY
    assert inert("\t=1") == "'\t=1" and inert("＝1") == "'＝1"
    assert inert("a=1") == "a=1" and inert("") == ""


def test_parquet_has_everything_as_it_was(table: Table, tmp_path: Path) -> None:
    path, again = tmp_path / "x.parquet", tmp_path / "y.parquet"
    write_parquet(path, table)
    write_parquet(again, table)
    assert path.read_bytes() == again.read_bytes()
    read = pq.read_table(path)
    assert read.column_names == FILE_COLUMNS
    for key in ("text", "n", "loss", "delta", "p", "testable", "empty"):
        assert read.column(key).to_pylist() == table.column(key)
    bounds = zip(read.column("loss_low").to_pylist(), read.column("loss_high").to_pylist(), strict=True)
    assert list(bounds) == [interval or (None, None) for interval in table.column("loss_interval")]
    types = {field.name: str(field.type) for field in read.schema}
    assert (types["text"], types["n"], types["loss"], types["testable"]) == (
        "string",
        "int64",
        "double",
        "bool",
    )
    assert read.schema.metadata[b"caption"].decode() == table.caption
    assert read.schema.field("n").metadata[b"label"] == b"number"


def test_columns_of_one_name_are_refused() -> None:
    columns = (Column("a_low", "", "share"), Column("a_interval", "", "interval", of="a"))
    with pytest.raises(ValueError, match="two columns of its file would be called a_low"):
        flat_columns(make_table("x", "", "", columns, []))


def test_print_leaves_out_what_says_nothing(table: Table) -> None:
    shown = printed(table)
    assert [column.label for column in shown.columns] == [
        "text & more",
        "number",
        "loss",
        "change",
        "by chance [their middle 95 %]",
        "p",
        "testable",
    ]
    assert shown.rows[1] == (" +1+1", "1,001", ".14 [.12, ∞]", "−.14", "1.00 [0, 2.00]", ".100", "no")
    assert shown.rows[0][2] == ".00"
    assert shown.notes == ("In brackets: 95 % intervals.", "In every row: mode: zero.")


def test_a_single_row_keeps_its_names(table: Table) -> None:
    shown = printed(replace(table, rows=table.rows[1:2]))
    assert [column.label for column in shown.columns][:2] == ["text & more", "mode"]


def test_markdown_renders_to_the_same_cells(table: Table) -> None:
    html = (
        MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).render(markdown(table))
    )
    assert "<h1>A title with 50 % &amp; more</h1>" in html
    rows = re.findall(r"<tr>\n(.*?)</tr>", html, flags=re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, flags=re.DOTALL) for row in rows]
    shown = printed(table)

    def plain(cell: str) -> str:
        for entity, letter in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
            cell = cell.replace(entity, letter)
        return cell.removeprefix("<code>").removesuffix("</code>")

    assert [[plain(cell) for cell in row] for row in cells] == [
        [column.label for column in shown.columns],
        *([" ".join(cell.split()) for cell in row] for row in shown.rows),
    ]
    # What GitHub would make a mail link is code.
    assert "<code>m.country_capital@en.k20</code>" in html
    assert 'style="text-align:right">1,001' in html


@pytest.mark.parametrize("rows", [10, 50])
def test_latex_is_well_formed(table: Table, rows: int) -> None:
    long = replace(table, rows=tuple(table.rows[i % 10] for i in range(rows)))
    text = latex(long)
    assert r"\label{tab:relbench-made-up}" in text
    assert (r"\begin{longtable}" in text) == (rows > 40)
    for name in ("table", "tabular", "longtable"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}")
    assert {r"\toprule", r"\midrule", r"\bottomrule"} <= set(text.splitlines())
    body = re.sub(r"\\[\\{}&%$#_]", "", text.partition("\n")[2])
    assert "%" not in body and "#" not in body and "^" not in body and "~" not in body
    depth = 0
    for letter in body:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert body.count("$") % 2 == 0
    lines = [line for line in text.splitlines() if line.endswith(r"\\") and not line.startswith(r"\label")]
    assert len(lines) == rows + (2 if rows > 40 else 1)
    for line in lines:
        assert len(re.findall(r"(?<!\\)&", line)) == 6
        assert not line.startswith(("[", "*"))


def test_latex_escapes() -> None:
    assert escape("50 % & a_b") == r"50 \% \& a\_b"
    assert escape("−.12 – ∞") == r"$-$.12 -- $\infty$"
    assert escape("\\ {x} ^~") == r"\textbackslash{} \{x\} \textasciicircum{}\textasciitilde{}"
