"""Pooled responses against one prompt at a time; the store under kills, damage and several processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interventions import responses as responses_module
from interventions.errors import UserError
from interventions.memory import describe_bytes, parse_memory
from interventions.methods import get_method
from interventions.parallel import world
from interventions.prompts import Prompt
from interventions.responses import POOLINGS, collect, plan_batches, tokenize
from interventions.store import DiskStore, Shape
from interventions.units import Site, capture, layout_of
from tests.tiny import BOS, tiny_model, tiny_tokenizer

WORDS = ("the capital", "what people of the land speak in", "money")


def make_prompts(n: int = 13) -> list[Prompt]:
    """Prompts of quite different lengths, with a subject each."""
    prompts = []
    for index in range(n):
        relation, subject = WORDS[index % len(WORDS)], "Éire" if index % 4 == 0 else f"land{index}"
        start = f"{relation} of "
        prompts.append(
            Prompt(
                text=f"{start}{subject} is" + " now" * (index % 3),
                answer=" x",
                accepted=(" x",),
                concept=f"r{index % len(WORDS)}",
                id=f"p{index}",
                subject_id=subject,
                answer_id="x",
                subject_span=(len(start), len(start) + len(subject)),
            )
        )
    return prompts


def one_by_one(model: Any, prompts: list[Prompt], site: Site, pooling: str) -> Tensor:
    """Responses [prompts, units] without batches or padding, pooled with plain indexing."""
    rows = []
    tokenizer = tiny_tokenizer()
    for prompt in prompts:
        encoded = tokenizer(prompt.text, return_offsets_mapping=True, return_tensors="pt")
        with torch.no_grad(), capture(model, [site]) as values:
            model(encoded["input_ids"])
        found = values[site][0]
        if pooling == "mean":
            rows.append(found.mean(0))
        elif pooling == "mean-no-bos":
            assert encoded["input_ids"][0, 0] == BOS
            rows.append(found[1:].mean(0))
        elif pooling == "max":
            rows.append(found.max(0).values)
        elif pooling == "last":
            rows.append(found[-1])
        elif pooling == "positive-share":
            rows.append((found > 0).float().mean(0))
        else:
            assert prompt.subject_span is not None
            before = tokenizer(prompt.text[: prompt.subject_span[1]])["input_ids"]
            rows.append(found[len(before) - 1])
    return torch.stack(rows)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_responses_equal_one_prompt_at_a_time(pooling: str) -> None:
    model, prompts = tiny_model(), make_prompts()
    sites = [Site(0, "gate"), Site(1, "act"), Site(2, "down")]
    with collect(model, tiny_tokenizer(), prompts, sites, pooling=pooling) as found:
        assert found.sites == tuple(sites)
        for site in sites:
            torch.testing.assert_close(
                found.site(site), one_by_one(model, prompts, site, pooling), atol=1e-5, rtol=1e-4
            )


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "gemma3_text", "opt", "bloom", "phi3"])
def test_every_kind_of_other_families(family: str) -> None:
    model, prompts = tiny_model(family), make_prompts(5)
    kinds = layout_of(model).kinds
    with collect(model, tiny_tokenizer(), prompts, [Site(1, kind) for kind in kinds]) as found:
        for kind in kinds:
            expected = one_by_one(model, prompts, Site(1, kind), "mean")
            torch.testing.assert_close(found.site(Site(1, kind)), expected, atol=1e-5, rtol=1e-4)


def test_neither_padding_side_nor_batches_change_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts, sites = tiny_model(), make_prompts(), [Site(1, "act")]
    tokenizer = tiny_tokenizer()
    found = []
    for side in ("left", "right"):
        tokenizer.padding_side = side
        found.append(collect(model, tokenizer, prompts, sites).site(sites[0]))
    assert torch.equal(*found)
    monkeypatch.setattr(responses_module, "MOST_TOKENS", {"cpu": 1})
    alone = collect(model, tokenizer, prompts, sites).site(sites[0])
    torch.testing.assert_close(alone, found[0], atol=1e-6, rtol=1e-5)


def test_batches_are_sorted_by_length_and_within_the_limit() -> None:
    lengths = [5, 9, 2, 9, 30, 4]
    batches = plan_batches(lengths, 18)
    assert batches == [[4], [1, 3], [0, 5, 2]]
    assert sorted(index for batch in batches for index in batch) == list(range(6))


def test_a_smaller_budget_means_smaller_batches() -> None:
    model = tiny_model()
    sites = layout_of(model).sites()
    assert responses_module.tokens_within(model, sites, 10**5) < responses_module.tokens_within(
        model, sites, 10**6
    )
    assert responses_module.tokens_within(model, sites, 1) == 1


class Calls:
    """Counts the forward passes of a model's body."""

    def __init__(self, model: Any, fail_at: int | None = None) -> None:
        self.n, self.fail_at = 0, fail_at
        self.handle = model.base_model.register_forward_pre_hook(self)

    def __call__(self, *_: object) -> None:
        if self.n == self.fail_at:
            raise KeyboardInterrupt
        self.n += 1


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_module, "MOST_TOKENS", {"cpu": 60})


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path, dtype: str) -> None:
    model, prompts, sites = tiny_model(), make_prompts(), [Site(0, "act"), Site(2, "up")]
    expected = collect(model, tiny_tokenizer(), prompts, sites, dtype=dtype)

    def run(fail_at: int | None = None) -> tuple[Any, int]:
        calls = Calls(model, fail_at)
        try:
            return collect(model, tiny_tokenizer(), prompts, sites, dtype=dtype, store=tmp_path), calls.n
        except KeyboardInterrupt:
            return None, calls.n
        finally:
            calls.handle.remove()

    assert run(fail_at=3) == (None, 3)
    (journal,) = tmp_path.glob("*/batches.0.jsonl")
    with open(journal, "a") as file:
        file.write('{"batch": 3, "crc')  # a kill in the middle of a line
    found, n_resumed = run()
    assert n_resumed > 0 and n_resumed + 3 == len(found._store.shape.batches)
    again, n_reused = run()
    assert n_reused == 0
    for site in sites:
        assert torch.equal(found.site(site), expected.site(site))
        assert torch.equal(again.site(site), expected.site(site))
    # One damaged byte costs one batch.
    (data,) = tmp_path.glob("*/responses.bin")
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    mended, n_mended = run()
    assert n_mended == 1 and torch.equal(mended.site(sites[1]), expected.site(sites[1]))


@pytest.mark.usefixtures("small_batches")
def test_a_store_serves_only_what_it_is_of(tmp_path: Path) -> None:
    sites = [Site(0, "act")]

    def folders(**changes: Any) -> int:
        arguments = {"model": tiny_model(), "prompts": make_prompts(), "sites": sites, **changes}
        model, prompts = arguments.pop("model"), arguments.pop("prompts")
        sites_ = arguments.pop("sites")
        collect(model, tiny_tokenizer(), prompts, sites_, store=tmp_path, **arguments)
        return len(list(tmp_path.iterdir()))

    assert folders() == folders() == 1
    assert folders(model=tiny_model(seed=1)) == 2
    assert folders(prompts=make_prompts(12)) == 3
    assert folders(sites=[Site(1, "act")]) == 4
    assert folders(pooling="max") == 5
    assert folders(dtype="float16") == 6
    # Answers are no part of what is read.
    manifest = json.loads(next(tmp_path.glob("*/manifest.json")).read_text())
    assert {"weights", "prompts", "pooling", "sites", "dtype", "batches"} <= manifest.keys()


def test_store_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape((Site(0, "act"),), (4,), (2, 1), "float32")
    DiskStore(tmp_path / "a", shape, {"of": "this"})
    with pytest.raises(UserError, match="something else"):
        DiskStore(tmp_path / "a", shape, {"of": "that"})
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 100, 100))
    with pytest.raises(UserError, match=r"need 48B.*100B are free"):
        DiskStore(tmp_path / "b", shape, {"of": "this"})
    assert not (tmp_path / "b" / "manifest.json").exists()


def test_what_cannot_be_read_is_one_line() -> None:
    model, tokenizer, prompts = tiny_model(), tiny_tokenizer(), make_prompts(4)
    sites = layout_of(model).sites(("act",))
    with pytest.raises(UserError, match="no prompts"):
        collect(model, tokenizer, [], sites)
    with pytest.raises(UserError, match="unknown pooling 'median'"):
        collect(model, tokenizer, prompts, sites, pooling="median")
    with pytest.raises(UserError, match="kept as float16 or float32"):
        collect(model, tokenizer, prompts, sites, dtype="int8")
    long = Prompt("x" * 600, " y", (" y",), "r0", "long", "s", "a")
    with pytest.raises(UserError, match="'long' of r0 has 601 tokens"):
        collect(model, tokenizer, [*prompts, long], sites)
    with pytest.raises(UserError, match="does not say where its subject is"):
        collect(model, tokenizer, [long], sites, pooling="last-subject")
    with pytest.raises(UserError, match="has no tokens"):
        tokenize(tokenizer, [Prompt("", " y", (" y",), "r0", "empty", "s", "a")], "mean")


@pytest.mark.parametrize("pooling", ["mean", "max", "positive-share"])
def test_nan_names_the_layer(pooling: str) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 0] = torch.nan
    with pytest.raises(UserError, match=r"layer 1 gives NaN or infinite responses at 1\.act.*'p"):
        collect(model, tiny_tokenizer(), make_prompts(3), layout_of(model).sites(("act",)), pooling=pooling)


def test_float16_refuses_what_it_cannot_hold() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1e7)
    sites = layout_of(model).sites(("down",))
    with pytest.raises(UserError, match="too large for float16"):
        collect(model, tiny_tokenizer(), make_prompts(3), sites, dtype="float16")


def test_blocks_stay_within_their_budget_and_cover_everything() -> None:
    model, prompts = tiny_model(), make_prompts()
    found = collect(model, tiny_tokenizer(), prompts, layout_of(model).sites(("act", "down")))
    parts: dict[Site, list[Tensor]] = {}
    for site, columns, block in found.blocks(4 * len(prompts) * 7):
        assert block.shape == (len(prompts), columns.stop - columns.start) and block.shape[1] <= 7
        parts.setdefault(site, []).append(block)
    for site in found.sites:
        whole = torch.cat(parts[site], dim=1)
        assert torch.equal(whole, found.site(site)[found.order])
    assert np.array_equal(np.sort(found.order), np.arange(len(prompts)))


def test_memory_sizes() -> None:
    assert parse_memory("4G") == 4 << 30 and parse_memory("512 MiB") == 512 << 20
    assert parse_memory(10**9) == 10**9 and describe_bytes(3 << 29) == "1.5G"
    for bad in ("much", "4 parsecs", "-1G", "1K"):
        with pytest.raises(UserError, match="memory is"):
            parse_memory(bad)


SHARED_JOB = """
import sys
import torch
torch.set_num_threads(1)
from tests.interventions.test_responses import shared_job
shared_job(sys.argv[1], sys.argv[2])
"""


def shared_job(out: str, store: str | None) -> None:
    """Score in small batches, and write everything found to a file named by this process."""
    responses_module.MOST_TOKENS["cpu"] = 60
    result = get_method("average-precision").score(
        tiny_model(),
        tiny_tokenizer(),
        make_prompts(),
        ["r0", "r1", "r2"],
        kinds=("act", "down"),
        seed=3,
        options={"bootstrap": 3, "store": store, "samples": 2},
        progress=False,
    )
    arrays = {str(site): values for site, values in result.values.items()}
    arrays |= {f"{name}/{site}": v for name, by in result.references.items() for site, v in by.items()}
    rank, size = world()
    np.savez(f"{out}.{rank}of{size}.npz", **arrays)


def test_two_processes_find_bit_for_bit_what_one_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "job.py"
    script.write_text(SHARED_JOB)
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    out, store = str(tmp_path / "out"), tmp_path / "store"
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        monkeypatch.setattr(responses_module, "MOST_TOKENS", dict(responses_module.MOST_TOKENS))
        shared_job(out, None)
    finally:
        torch.set_num_threads(threads)
    subprocess.run([*torchrun, str(script), out, str(store)], env=environment, check=True, timeout=300)
    assert sorted(path.name for path in store.glob("*/batches.*")) == ["batches.0.jsonl", "batches.1.jsonl"]
    one = dict(np.load(tmp_path / "out.0of1.npz"))
    for rank in range(2):
        other = dict(np.load(tmp_path / f"out.{rank}of2.npz"))  # written by a world of 2
        assert one.keys() == other.keys()
        for name in one:
            assert np.array_equal(one[name], other[name]), name
