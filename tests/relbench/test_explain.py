"""`relbench explain`: the three views of one prediction, from the command line."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from click.testing import CliRunner

from interventions.attribution.explanation import explain as run_explain
from relbench.commands.explain import explain
from relbench.explain import as_html, as_json, visible
from tests.tiny import tiny_model, tiny_tokenizer

PROMPT = "The <b>capital</b> of Peru is"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def explanation():
    return run_explain(tiny_model("llama"), tiny_tokenizer(), PROMPT, top=3)


def test_command_prints_and_writes(checkpoint, tmp_path):
    page, numbers = tmp_path / "out.html", tmp_path / "out.json"
    arguments = [
        "--prompt",
        PROMPT,
        "--model",
        checkpoint,
        "--top",
        "3",
        "--html",
        str(page),
        "--json",
        str(numbers),
    ]
    result = CliRunner().invoke(explain, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    for part in ("Layers", "FFN value neurons", "Attention value neurons", "Query neurons through attention"):
        assert part in result.output
    content = json.loads(numbers.read_text())
    assert content["prompt"] == PROMPT and len(content["ffn_values"]) == 3
    assert "<!doctype html>" in page.read_text()


def test_json_holds_every_number_in_full_precision(explanation):
    content = json.loads(as_json(explanation, "tiny"))
    assert content.pop("model") == "tiny"
    assert content == json.loads(json.dumps(asdict(explanation)))


def test_page_is_self_contained_and_escapes_text(explanation):
    page = as_html(explanation, "tiny")
    assert "<b>capital</b>" not in page and "&lt;b&gt;capital" in page
    assert "http" not in page and "<script" not in page and "src=" not in page
    for row in explanation.ffn_values:
        assert f"{row.layer}.act[{row.unit}]" in page


def test_json_to_stdout_is_only_json(checkpoint):
    result = CliRunner().invoke(explain, ["--prompt", "x", "--model", checkpoint, "--json", "-"])
    assert json.loads(result.stdout)["prompt"] == "x"


def test_tokens_show_their_spaces():
    assert visible(" Paris") == "␣Paris"
    assert visible("\n\t") == "↵⇥"
    assert visible("\x07") == "\\x07"
    assert len(visible("x" * 99)) == 24
