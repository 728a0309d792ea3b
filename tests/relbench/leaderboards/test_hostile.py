"""Hostile input: whatever a stranger puts into a leaderboards folder becomes a problem of one line, no more."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relbench.leaderboards import limits, reading, samples_file
from relbench.leaderboards.problems import LINE, Problem, Refused, shown
from relbench.leaderboards.reading import gzip_lines, parse_json, read_json
from relbench.leaderboards.submission import Submission, read_submission, read_submissions
from relbench.leaderboards.verify import verify
from tests.relbench.leaderboards.made import edit, problems, restate, samples_path

FILE = f"results/made-up/weights-{'5' * 16}/made.json"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xff\xfe", "expected UTF-8, found byte 0xff at 0"),
        (b"", "expected JSON, found a mistake in line 1, column 1"),
        (b'{"a": 1', "expected JSON, found a mistake"),
        (b'{"a": 1} {"a": 1}', "expected JSON, found a mistake"),
        (b'{"a": 1, "a": 2}', "expected each key once, found 'a' twice"),
        (b"[NaN]", "expected finite numbers, found NaN"),
        (b"[Infinity]", "expected finite numbers, found Infinity"),
        (b"[-Infinity]", "expected finite numbers, found -Infinity"),
        (b"[1e999]", "expected finite numbers, found '1e999'"),
        (b"[" + b"9" * 5000 + b"]", "expected integers of at most 18 digits, found more"),
        (b"[" * 17 + b"]" * 17, "expected at most 16 levels of nesting"),
        (b'{"a":' * 100_000, "expected at most 16 levels of nesting"),
        (b'["\\"[[[[[[[[[[[[[[[[[[[[[[[[[[", "\\\\"' + b"]", None),
    ],
)
def test_json_is_read_strictly(data: bytes, expected: str | None) -> None:
    if expected is None:
        assert parse_json(data) == json.loads(data)
        return
    with pytest.raises(Refused) as refused:
        parse_json(data)
    assert refused.value.what.startswith(expected)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(-(10**17), 10**17), st.lists, max_leaves=20
    )
)
def test_what_python_writes_is_read_the_same(value: Any) -> None:
    try:
        data = json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        data = json.dumps(value).encode()
    assert parse_json(data) == value


@pytest.mark.parametrize(
    "text", ["a\nb", "\x1b[31mred", "\u202eabc", "\u0000", "\u2028", "\ud800", "a\u200bb", "\x7f"]
)
def test_text_that_cannot_be_printed_is_refused_and_escaped(tmp_path: Path, text: str) -> None:
    for value in ({"name": text}, {text: "name"}, [[text]]):
        path = tmp_path / "a.json"
        path.write_text(json.dumps(value))
        with pytest.raises(Refused) as refused:
            read_json(path)
        assert refused.value.what.startswith("expected printable characters, found '")
        assert str(Problem("a.json", refused.value.field, refused.value.what)).isprintable()
    assert shown(text).isprintable()


def test_messages_stay_short_whatever_is_quoted(root: Path) -> None:
    edit(root / FILE, lambda raw: raw.update({"x" * 100_000: 1, "licence": "y " * 100_000}))
    said = problems(root)
    assert len(said) == 3
    assert all(len(line) <= LINE + 1 and line.isprintable() for line in said)


def test_a_file_that_is_too_large_is_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(root / FILE, "r+b") as file:
        # Sparse: it takes no room on the disk.
        file.truncate(limits.JSON_BYTES + 1)
    assert problems(root) == [
        f"{FILE}: expected at most {limits.JSON_BYTES} bytes, found {limits.JSON_BYTES + 1}"
    ]


def test_a_bomb_is_unpacked_to_the_limit_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "UNPACKED_BYTES", 2**22)
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(b"{}\n" * 2**19)
    assert path.stat().st_size < 2**19
    read = 0
    with pytest.raises(Refused, match="expected at most 4194304 bytes unpacked, found more"):
        for line in gzip_lines(path):
            read += len(line) + 1
    assert read <= 2**22


def test_a_line_without_an_end_stops_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LINE_BYTES", 2**20)
    path = tmp_path / "line.gz"
    path.write_bytes(gzip.compress(b" " * 2**25))
    with pytest.raises(Refused, match="expected lines of at most 1048576 bytes"):
        list(gzip_lines(path))


@pytest.mark.parametrize(
    "data",
    [b"", b"no gzip", gzip.compress(b"{}\n")[:-1], gzip.compress(b"{}\n") + b"more", zlib.compress(b"{}\n")],
)
def test_what_is_no_whole_gzip_file_is_refused(root: Path, data: bytes) -> None:
    samples_path(root / FILE).write_bytes(data)
    restate(root / FILE)
    said = problems(root)
    assert said
    assert all("samples/made.jsonl.gz: " in line for line in said)
    if data:
        assert "expected a whole gzip file, found a damaged one" in said[-1]


def test_more_lines_and_answers_than_the_limits_are_not_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_file, "QUESTIONS", 3)
    assert any("line 4: expected at most 3 lines, found more" in line for line in problems(root))
    monkeypatch.setattr(samples_file, "QUESTIONS", 10**6)
    monkeypatch.setattr(samples_file, "ANSWERS", 100)
    assert any("line 3: expected at most 100 answers, found more" in line for line in problems(root))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (FILE, [FILE]),
        (FILE.replace("made.json", "model_meta.json"), [FILE.replace("made.json", "model_meta.json")] * 2),
        (
            FILE.replace("made.json", "samples/made.jsonl.gz"),
            [FILE.replace("made.json", "samples/made.jsonl.gz")] * 2,
        ),
        ("results/made-up", ["results/made-up"]),
        ("results", ["results"]),
    ],
)
def test_links_are_not_followed(root: Path, tmp_path: Path, where: str, said: list[str]) -> None:
    # What they lead to would be right.
    moved = tmp_path / "moved"
    shutil.move(root / where, moved)
    (root / where).symlink_to(moved)
    found = [problem for problem in verify(root).problems if "symbolic link" in problem.what]
    assert {problem.file for problem in found} == set(said)
    assert not list(read_submissions(root)) or where.endswith(("meta.json", ".gz"))


def test_a_linked_samples_folder_is_not_read(root: Path, tmp_path: Path) -> None:
    folder = samples_path(root / FILE).parent
    shutil.move(folder, tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert [line.partition(": ")[0] for line in problems(root)] == [
        str(folder.relative_to(root)),
        str(samples_path(root / FILE).relative_to(root)),
    ]


def test_devices_and_pipes_are_not_waited_for(root: Path) -> None:
    (root / FILE).unlink()
    os.mkfifo(root / FILE)
    said = problems(root)
    assert any(line.startswith(f"{FILE}: expected results/") for line in said)


def test_only_the_first_problems_of_a_file_are_spelt_out(root: Path) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["treatments"] = [{} for _ in range(100)]

    edit(root / FILE, change)
    said = problems(root)
    assert len(said) == limits.PROBLEMS + 1
    assert any(line.endswith("more problems of this file") for line in said)


# What is put in the place of anything.
_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    10**17,
    1.5,
    -1e300,
    "",
    "x",
    "../..",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "|\u00a0|",
    "relbench_country_capital_en",
    "all",
    "paper12",
    [],
    [[]],
    [None, None],
    {},
    {"a": {}},
    ["gate", "gate"],
    {"negatives": {"a": 3}},
    {"negatives": 3},
    {"contrast": "none"},
]


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value; of long lists the first and the last."""
    found = [place] if place else []
    if isinstance(value, dict):
        for key in value:
            found += _places(value[key], (*place, key))
    elif isinstance(value, list):
        for number in sorted({0, 1, len(value) - 1} & set(range(len(value)))):
            found += _places(value[number], (*place, number))
    return found


def _mutated(raw: Any, draw: random.Random) -> Any:
    raw = copy.deepcopy(raw)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        *inner, last = draw.choice(_places(raw))
        place = raw
        for part in inner:
            place = place[part]
        how = draw.randrange(4)
        if how == 0:
            del place[last]
        elif how == 1 and isinstance(place, list):
            place.append(copy.deepcopy(place[last]))
        elif how == 2:
            # A value from elsewhere in the same file.
            value = raw
            for part in draw.choice(_places(raw)):
                value = value[part]
            place[last] = copy.deepcopy(value)
        else:
            place[last] = copy.deepcopy(draw.choice(_VALUES))
        if not _places(raw):
            break
    return raw


def _survives(root: Path, file: Path, data: bytes) -> None:
    """Whatever a file holds, `verify` ends, and says lines."""
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        found = verify(root)
        assert all(isinstance(problem, Problem) for problem in found.problems)
        for problem in found.problems:
            line = str(problem)
            assert line.isprintable() and len(line) <= LINE + 1
            assert (root / problem.file).is_relative_to(root)
        if not found.problems:
            # What passes says the same as before, whatever was changed in what nothing depends on.
            assert [one.results for one in found.submissions] == [
                one.results for one in read_submissions(root)
            ]
    finally:
        file.write_bytes(before)


@pytest.fixture(scope="module")
def fuzzed(verified: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(verified, tmp_path_factory.mktemp("fuzz") / "leaderboards"))


_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


def _fuzz_submission(root: Path, seed: int) -> None:
    raw = json.loads((root / FILE).read_text())
    _survives(root, root / FILE, json.dumps(_mutated(raw, random.Random(seed))).encode())


def _fuzz_samples(root: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = samples_path(root / FILE)
    lines = gzip.decompress(path.read_bytes()).splitlines()
    number = draw.randrange(len(lines))
    lines[number] = json.dumps(_mutated(json.loads(lines[number]), draw)).encode()
    _survives(root, path, gzip.compress(b"\n".join(lines) + b"\n"))


def _fuzz_bytes(root: Path, seed: int) -> None:
    draw = random.Random(seed)
    file = draw.choice([root / FILE, samples_path(root / FILE), (root / FILE).with_name("model_meta.json")])
    data = bytearray(file.read_bytes())
    for _ in range(draw.choice([1, 3, 30])):
        place = draw.randrange(len(data))
        data[place : place + draw.choice([0, 1, 1, 5])] = draw.randbytes(draw.choice([0, 1, 4]))
    _survives(root, file, bytes(data))


_FUZZERS: list[Callable[[Path, int], None]] = [_fuzz_submission, _fuzz_samples, _fuzz_bytes]


@pytest.mark.parametrize("fuzz", _FUZZERS)
@settings(max_examples=15, deadline=None, suppress_health_check=_QUIET)
@given(seed=st.integers(0, 2**32))
def test_mutations_become_problems(fuzzed: Path, fuzz: Callable[[Path, int], None], seed: int) -> None:
    fuzz(fuzzed, seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("fuzz", _FUZZERS)
@settings(max_examples=500, deadline=None, suppress_health_check=_QUIET)
@given(seed=st.integers(0, 2**32))
def test_many_mutations_become_problems(fuzzed: Path, fuzz: Callable[[Path, int], None], seed: int) -> None:
    fuzz(fuzzed, seed)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_submission_or_problems(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.json"
    path.write_bytes(data)
    found = read_submission(path, "a.json")
    assert isinstance(found, Submission) or all(isinstance(one, Problem) for one in found)
