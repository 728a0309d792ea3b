"""What a sweep directory says it is: `sweep.yaml`, and the lock of the process that works in it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from interventions.errors import UserError
from interventions.files import atomic_write
from relbench.sweep_config import SweepConfig
from relbench.treatments import Treatment

if TYPE_CHECKING:
    from interventions.model_id import ModelId

FILE = "sweep.yaml"
# What comes into being after `sweep.yaml`, in a sweep or in its report.
OUTPUTS = (
    "journal",
    "samples.jsonl",
    "perplexity.jsonl",
    "results",
    "logged",
    "run.json",
    "tables",
    "figures",
    "deltas.csv",
    "deltas.parquet",
    "report.html",
)


def read_treatments(directory: str | Path) -> list[Treatment]:
    """What was done in a sweep.

    Raises:
        UserError: The directory is not a sweep's.
    """
    return [Treatment.from_dict(raw) for raw in read_state(directory)["treatments"]]


def read_config(directory: str | Path) -> SweepConfig:
    """The resolved config of a sweep directory.

    Raises:
        UserError: The directory is not a sweep's.
    """
    return SweepConfig.from_dict(read_state(directory)["config"], str(Path(directory) / FILE))


def read_state(directory: str | Path) -> dict[str, Any]:
    """`sweep.yaml`: config, data hashes, model and treatments.

    Raises:
        UserError: The directory is not a sweep's, or the file is damaged.
    """
    path = Path(directory) / FILE
    if not path.is_file():
        raise UserError(f"{directory} is not a sweep directory: it has no {FILE}")
    try:
        # The C loader is ten times faster on the thousands of treatments of a large grid.
        state = yaml.load(
            path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged; use another directory ({error})") from error
    if not isinstance(state, dict) or not {"config", "data", "treatments"} <= state.keys():
        raise UserError(f"{path} is not a sweep's; use another directory")
    return state


def make_state(
    config: SweepConfig, data: Mapping[str, str], model: ModelId, treatments: Sequence[Treatment]
) -> dict[str, Any]:
    """What `sweep.yaml` holds."""
    return {
        "config": config.to_dict(),
        "data": dict(data),
        "model": model.to_dict(),
        "treatments": [_plain(asdict(treatment)) for treatment in treatments],
    }


def _plain(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in raw.items()}


def write_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Write `sweep.yaml`."""
    with atomic_write(directory / FILE) as file:
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        yaml.dump(dict(state), file, Dumper=dumper, sort_keys=False, allow_unicode=True)


def refuse_other_outputs(directory: Path) -> None:
    """Make sure that a directory without a sweep has nothing that a sweep or its report would replace.

    Raises:
        UserError: It has; one such thing is named.
    """
    for name in OUTPUTS:
        if (directory / name).exists():
            raise UserError(
                f"{directory} has {name} but no {FILE}: it is no sweep's directory, and {name} would be "
                "replaced; use a new directory"
            )


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], directory: Path) -> None:
    """Make sure that a directory's sweep is the one that is asked for.

    Raises:
        UserError: It is another; what differs is named.
    """
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed == ["treatments"]:
        changed = ["treatments (" + _first_difference(before["treatments"], now["treatments"]) + ")"]
    if changed:
        raise UserError(
            f"{directory / FILE} was made with another {', '.join(changed)}; "
            "use a new directory, or the old settings"
        )


def _first_difference(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    for old, new in zip(before, now, strict=False):
        if old != new:
            return str(old["id"] if old["id"] == new["id"] else f"{old['id']}, now {new['id']}")
    return f"{len(before)}, now {len(now)}"


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, or say that another process does.

    Raises:
        UserError: Another process works in the directory, or it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / ".lock"
        lock = open(path, "w")  # noqa: SIM115  it is closed below
    except OSError as error:
        raise UserError(f"cannot use {directory} as a sweep directory: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is running a sweep in {directory}") from error
        try:
            yield
        finally:
            # A mistake found before anything was made leaves no directory behind.
            if list(directory.iterdir()) == [path]:
                path.unlink()
                directory.rmdir()
