"""Files: the same content gives the same bytes; a damaged, cut or foreign file gives one clear line."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as to_bytes

from interventions import artifact
from interventions.errors import UserError
from interventions.mask import Mask
from interventions.scores import Scores
from interventions.selection import top_k
from interventions.units import Site
from tests.interventions.making import model_id, random_scores
from tests.interventions.mutating import mutate, mutations

TENSORS = {"0.act": np.arange(5, dtype=np.float32), "1.act": np.arange(3, dtype=np.int32)}


def written(path: Path) -> bytes:
    artifact.save(path, what="mask", header={"b": 1, "a": [1.5, "x"]}, tensors=TENSORS)
    return path.read_bytes()


def reading(path: Path, data: bytes, what: str = "mask") -> artifact.Artifact:
    path.write_bytes(data)
    return artifact.load(path, what=what)


def with_header(header: object, tensors: dict[str, np.ndarray] | None = None) -> bytes:
    text = header if isinstance(header, str) else json.dumps(header)
    return to_bytes(tensors or {}, {artifact.METADATA_KEY: text})


def test_round_trip_and_equal_bytes(tmp_path: Path) -> None:
    first = written(tmp_path / "a")
    loaded = artifact.load(tmp_path / "a", what="mask")
    assert loaded.header["a"] == [1.5, "x"] and loaded.header["what"] == "mask"
    assert all(np.array_equal(loaded.tensors[name], array) for name, array in TENSORS.items())
    tensors = dict(reversed(TENSORS.items()))
    artifact.save(tmp_path / "b", what="mask", header={"a": [1.5, "x"], "b": 1}, tensors=tensors)
    assert (tmp_path / "b").read_bytes() == first


def test_the_only_metadata_key_is_ours(tmp_path: Path) -> None:
    data = written(tmp_path / "a")
    size = struct.unpack("<Q", data[:8])[0]
    assert list(json.loads(data[8 : 8 + size])["__metadata__"]) == [artifact.METADATA_KEY]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\x00", "not a safetensors file"),
        (b"PK\x03\x04" * 10, "not a safetensors file"),
        (to_bytes({"x": np.zeros(3, np.float32)}), "not written by relbench"),
        (with_header("{"), "header is damaged"),
        (with_header("[1]"), "header is damaged"),
        (with_header("[" * 100_000), "header is damaged"),
        (with_header('{"a": NaN}'), "header is damaged"),
        (with_header({"format": 99, "what": "mask"}), "format version 99"),
        (with_header({"format": True, "what": "mask"}), "format version True"),
        (with_header({"format": 1, "what": "scores"}), "holds 'scores', not mask"),
        (with_header({"format": 1, "what": "mask"}), "checksum"),
        (with_header({"format": 1}, {"x": np.zeros(2, np.float64)}), "float64"),
        (with_header({"format": 1}, {"x": np.zeros(2, np.int64)}), "int64"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        reading(tmp_path / "file", data)
    assert "\n" not in str(raised.value) and str(tmp_path / "file") in str(raised.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="cannot read"):
            artifact.load(path, what="mask")


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    data = written(tmp_path / "whole")
    for length in range(len(data)):
        with pytest.raises(UserError):
            reading(tmp_path / "cut", data[:length])


def test_nothing_half_written_when_saving_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        artifact.save(tmp_path / "new", what="mask", header={"a": float("nan")}, tensors=TENSORS)
    assert list(tmp_path.iterdir()) == []


def a_mask() -> Mask:
    return top_k(random_scores(("act", "attn")), "a@en", 20)


# ---------------------------------------------------------- files that are ours, whole, and still wrong


def saved(path: Path, header: dict[str, object], tensors: dict[str, np.ndarray], what: str = "mask") -> Path:
    artifact.save(path, what=what, header=header, tensors=tensors)
    return path


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"0.act": np.array([1, 48], np.int32)}, "unit 48 of 0.act, which has units 0 to 47"),
        ({"0.act": np.array([-1, 4], np.int32)}, "unit -1"),
        ({"0.act": np.array([4, 4], np.int32)}, "twice"),
        ({"0.act": np.array([5, 4], np.int32)}, "not sorted"),
        ({"0.act": np.array([[4]], np.int32)}, "list of integers"),
        ({"0.act": np.array([4], np.float32)}, "float32, not int32"),
        ({"9.act": np.array([4], np.int32)}, "no layer 9"),
        ({"0.foo": np.array([4], np.int32)}, "not a site"),
        ({"0.act": np.array([4], np.int32), "MEAN/0.act": np.zeros(1, np.float32)}, "bad reference name"),
        (
            {"0.act": np.array([4], np.int32), "mean/0.act": np.zeros(2, np.float32)},
            "one value for each unit",
        ),
        ({"0.act": np.array([4], np.int32), "mean/0.act": np.array([np.inf], np.float32)}, "NaN or an inf"),
        ({"0.act": np.array([4], np.int32), "mean/0.act": np.zeros(1, np.int32)}, "not float32"),
    ],
)
def test_masks_with_wrong_contents_are_named(
    tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    path = saved(tmp_path / "m", {"model": model_id().to_dict(), "provenance": {}}, tensors)
    with pytest.raises(UserError, match=message):
        Mask.load(path)


def test_scores_with_wrong_contents_are_named(tmp_path: Path) -> None:
    good = random_scores()
    header = {**good._header(), "model": good.model.to_dict()}
    tensors = good._tensors()
    bad = tensors["0.act"].copy()
    bad[1, 7] = np.nan
    cases: list[tuple[dict[str, object], dict[str, np.ndarray], str]] = [
        (header, {**tensors, "0.act": bad}, "0.act hold NaN"),
        (header, {**tensors, "0.act": bad[:, :40]}, "0.act has 48 units, not 40"),
        (header, {**tensors, "0.act": tensors["0.act"][:1]}, "not \\[2 concepts"),
        ({**header, "concepts": ["a@en", "a@en"]}, tensors, "a concept twice"),
        ({**header, "concepts": "ab"}, tensors, "'concepts' is missing"),
        ({**header, "seed": "0"}, tensors, "'seed' is missing or not of type int"),
        ({**header, "model": None}, tensors, "identity in the file is not complete"),
    ]
    for number, (one, contents, message) in enumerate(cases):
        with pytest.raises(UserError, match=message):
            Scores.load(saved(tmp_path / str(number), one, contents, what="scores"))


def test_one_kind_of_file_is_not_read_as_the_other(tmp_path: Path) -> None:
    random_scores().save(tmp_path / "scores")
    a_mask().save(tmp_path / "mask")
    with pytest.raises(UserError, match="holds 'scores', not mask"):
        Mask.load(tmp_path / "scores")
    with pytest.raises(UserError, match="holds 'mask', not scores"):
        Scores.load(tmp_path / "mask")
    assert artifact.kind_of(tmp_path / "mask") == "mask" and artifact.kind_of(tmp_path / "scores") == "scores"


# ---------------------------------------------------------------------------------------------- fuzzing


def never_a_traceback_or_another_mask(tmp_path: Path, edits: list[tuple[str, int, bytes]]) -> None:
    mask = a_mask()
    whole = tmp_path / "whole"
    if not whole.exists():
        mask.save(whole)
    path = tmp_path / "mutated"
    path.write_bytes(mutate(whole.read_bytes(), edits))
    try:
        loaded = Mask.load(path)
    except UserError as error:
        assert "\n" not in str(error)
        return
    assert loaded == mask and loaded.provenance == mask.provenance


FUZZ = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
    database=None,
)


@settings(FUZZ, max_examples=60)
@given(edits=mutations())
def test_a_mutated_mask_file_is_refused_or_unharmed(
    tmp_path: Path, edits: list[tuple[str, int, bytes]]
) -> None:
    never_a_traceback_or_another_mask(tmp_path, edits)


@pytest.mark.fuzz
@settings(FUZZ, max_examples=5000, derandomize=False)
@given(edits=mutations())
def test_a_mutated_mask_file_is_refused_or_unharmed_at_length(
    tmp_path: Path, edits: list[tuple[str, int, bytes]]
) -> None:
    never_a_traceback_or_another_mask(tmp_path, edits)


@pytest.mark.fuzz
def test_every_single_bit_flip_is_refused_or_unharmed(tmp_path: Path) -> None:
    a_mask().save(tmp_path / "m")
    size = (tmp_path / "m").stat().st_size
    for position in range(size):
        for bit in range(8):
            never_a_traceback_or_another_mask(tmp_path, [("flip", position, bytes([bit]))])


@settings(FUZZ, max_examples=60)
@given(data=st.data())
def test_a_header_of_arbitrary_json_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Whole files with a right checksum whose header fields hold anything at all."""
    leaf = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    anything = st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)
    )
    header = {"model": model_id().to_dict(), "provenance": {}}
    layout = header["model"]["layout"]  # type: ignore[index]
    target, keys = data.draw(st.sampled_from([(header, "model"), (header, "provenance"), (layout, "n_layers"),
                                              (layout, "kinds"), (header["model"], "layout")]))  # fmt: skip
    target[keys] = data.draw(anything)
    path = saved(tmp_path / "h", header, {"0.act": np.array([1, 2], np.int32)})
    try:
        assert len(Mask.load(path)) == 2
    except UserError as error:
        assert "\n" not in str(error)


def test_scores_survive_a_round_trip(tmp_path: Path) -> None:
    scores = random_scores(("act", "attn"))
    scores.save(tmp_path / "a")
    scores.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = Scores.load(tmp_path / "a")
    assert loaded.digest == scores.digest and loaded.model == scores.model
    assert loaded.concepts == scores.concepts and loaded.parameters == scores.parameters
    for site, array in scores.row("b@en").items():
        assert np.array_equal(loaded.row("b@en")[site], array)
    assert loaded.references.keys() == scores.references.keys()
    site = Site(2, "attn")
    assert np.array_equal(loaded.reference("samples", "a@en")[site], scores.references["samples"][site])
