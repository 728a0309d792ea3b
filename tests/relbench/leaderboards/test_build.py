"""What is built: the same bytes from the same submissions, stale files named, and strangers' text that does nothing."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from interventions.errors import UserError
from relbench.commands.leaderboard import leaderboard
from relbench.leaderboards.build import build, render
from relbench.leaderboards.inert import csv_text, markdown, one_line, web_link
from tests.relbench.leaderboards.entries import HOSTILE, english, hostile, two_languages, write


def _parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def _inline(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or []]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@example("\\")
@example("www.e.example")
@example("1.")
def test_text_in_a_markdown_cell_is_that_text_and_nothing_else(text: str) -> None:
    tokens = _parse(f"| h | i |\n| :-- | :-- |\n| {markdown(text)} | x |\n")
    assert sum(token.type == "td_open" for token in tokens) == 2
    cell = _inline(tokens)[2:-1]
    assert {token.type for token in cell} <= {"text", "text_special"}
    shown = "".join(token.content for token in cell).replace("@\u2060", "@")
    assert shown.split() == one_line(text).split()


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_a_markdown_line_makes_no_block(text: str) -> None:
    tokens = _parse(f"{markdown(text)}\n")
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert {token.type for token in _inline(tokens)} <= {"text", "text_special"}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_csv_is_no_formula_and_stays_in_its_cell(text: str) -> None:
    out = io.StringIO()
    csv.writer(out).writerow([csv_text(text), "next"])
    assert out.getvalue().count("\n") == 1
    cell, following = next(csv.reader([out.getvalue()]))
    assert following == "next"
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert cell.removeprefix("'") == one_line(text)


def test_only_addresses_on_the_web_become_links() -> None:
    for good in ("https://example.org/a?b=c#d", "http://example.org"):
        assert web_link(good) == good
    bad = ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "//e.example", "https://", "a b", "",
           "https://me:secret@e.example", "https://e.example/\nx", 'https://e.example/"x', "http://[::1"]  # fmt: skip
    assert [web_link(one) for one in bad] == [None] * len(bad)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_do_nothing_in_the_files(text: str) -> None:
    files = render([hostile(text)])
    tokens = _parse(files["README.md"])
    kinds = {token.type for token in tokens} | {token.type for token in _inline(tokens)}
    assert not kinds & {"html_block", "fence", "code_block", "image", "strikethrough_open"}
    assert {token.content for token in _inline(tokens) if token.type == "html_inline"} <= {"<sub>", "</sub>"}
    targets = {str(token.attrGet("href")) for token in _inline(tokens) if token.type == "link_open"}
    assert all(not target.startswith(("http", "javascript", "mailto", "data", "//")) for target in targets)
    tables = [token.map for token in tokens if token.type == "table_open"]
    assert len(tables) == 2
    for name, content in files.items():
        if name.endswith(".csv"):
            rows = list(csv.reader(io.StringIO(content)))
            assert len({len(row) for row in rows}) == 1
            for cell in (cell for row in rows for cell in row):
                assert not cell.startswith(("=", "@", "+")) or cell == "+"
                # Numbers may be negative.
                assert not cell.startswith("-") or float(cell) < 0


def test_the_same_submissions_give_the_same_bytes_in_any_order_place_and_process(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "elsewhere" / "second"
    write(english(), first)
    write(two_languages(), first)
    write(two_languages(), second)
    write(english(), second)
    files = build(first).files
    code = f"from pathlib import Path; from relbench.leaderboards.build import build; build(Path({str(second)!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert len(files) == 4 + 4 + 3 + 2
    for name in files:
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(english(), tmp_path / "leaderboards")
    write(two_languages(), tmp_path / "leaderboards")
    return tmp_path / "leaderboards"


def test_check_names_what_is_stale_and_writes_nothing(root: Path) -> None:
    def check() -> tuple[int, str]:
        done = CliRunner().invoke(leaderboard, ["build", str(root), "--check"])
        return done.exit_code, done.output

    assert check()[0] == 2
    assert not (root / "README.md").exists()
    assert CliRunner().invoke(leaderboard, ["build", str(root)]).exit_code == 0
    assert check() == (0, "13 files are fresh\n")
    (root / "tables" / "models.csv").write_text("rank\n1\n")
    (root / "site" / "old.html").write_text("old")
    (root / "site" / "style.css").unlink()
    status, said = check()
    assert status == 2
    stale = ["site/old.html", "site/style.css", "tables/models.csv"]
    assert said.splitlines()[1:] == [str(root / name) for name in stale]
    assert build(root).stale == tuple(stale)
    assert check()[0] == 0


def test_a_submission_that_goes_takes_its_page_along(root: Path) -> None:
    build(root)
    (path,) = root.glob("results/org__other/*/*.json")
    path.unlink()
    built = build(root)
    assert [Path(name).name[:9] for name in built.removed] == ["org-other"]
    assert len(list((root / "site" / "submissions").iterdir())) == 1
    assert "org/other" not in (root / "README.md").read_text()


def test_without_submissions_the_boards_say_so(tmp_path: Path) -> None:
    build(tmp_path)
    assert (tmp_path / "README.md").read_text().count("There are no entries yet.") == 3
    for page in ("index", "relations", "models", "transfer"):
        assert "There are no entries yet." in (tmp_path / "site" / f"{page}.html").read_text()


def test_what_cannot_be_read_stops_the_build(root: Path) -> None:
    (root / "results" / "org__other" / "abc123" / "bad.json").write_text("{")
    with pytest.raises(UserError, match=r"results/org__other/abc123/bad.json: .* verify"):
        build(root)
    assert not (root / "README.md").exists()
    with pytest.raises(UserError, match="no folder"):
        build(root / "none")


def test_nothing_is_written_through_links(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "tables").symlink_to(outside)
    with pytest.raises(UserError, match="symbolic link"):
        build(root)
    (root / "tables").unlink()
    build(root)
    shutil.rmtree(root / "site" / "submissions")
    (root / "site" / "submissions").symlink_to(outside)
    kept = outside / "kept.html"
    kept.write_text("kept")
    (root / "README.md").unlink()
    (root / "README.md").symlink_to(kept)
    build(root)
    assert list(outside.iterdir()) == [kept]
    assert kept.read_text() == "kept"
    assert not (root / "site" / "submissions").is_symlink()


def test_the_readme_has_the_numbers(root: Path) -> None:
    build(root)
    text = (root / "README.md").read_text()
    assert "| 1 | good | .10 |" in text
    assert "| 2 | poor | not reached |" in text
    assert "| – | *random* | not reached |" in text
    lines = (root / "tables" / "methods.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))
    assert [(row["model"], row["language"], row["method"], row["rank"]) for row in rows[:3]] == [
        ("made-up", "all", "good", "1"),
        ("made-up", "all", "poor", "2"),
        ("made-up", "all", "random", ""),
    ]
    assert (rows[0]["off_target_at_half"], rows[0]["seconds"], rows[0]["bytes"]) == ("0.1", "12.5", "2500000")
    assert (rows[1]["off_target_at_half"], rows[1]["off_target_at_half_high"]) == ("", "inf")
