"""Everything that is rendered from the submissions: Markdown, CSV and the site. The same inputs, the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from interventions.errors import UserError
from interventions.files import atomic_write
from relbench.leaderboards.board_tables import board_tables, csv_file
from relbench.leaderboards.boards import make_boards
from relbench.leaderboards.readme import readme
from relbench.leaderboards.site import site
from relbench.leaderboards.submission import Submission, read_submission
from relbench.leaderboards.tree import submission_files

README, TABLES, SITE = "README.md", "tables", "site"


@dataclass(frozen=True)
class Built:
    """What a build changed, as paths below the leaderboards folder.

    Attributes:
        files: All that it consists of.
        changed: Files that were missing or had another content.
        removed: Files under `tables/` and `site/` that belong to no submission any more.
    """

    files: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def stale(self) -> tuple[str, ...]:
        """Files that are not what the submissions say."""
        return tuple(sorted((*self.changed, *self.removed)))


def build(root: Path, *, check: bool = False) -> Built:
    """Render the boards of a leaderboards folder into it.

    Args:
        root: The folder, which holds `results/`.
        check: Write nothing, only say what would change.

    Raises:
        UserError: There is no such folder, or a submission has not the form that it should have.
    """
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; name a leaderboards folder")
    for folder in (TABLES, SITE):
        if (root / folder).is_symlink():
            raise UserError(
                f"{root / folder} is a symbolic link, and what is built must stay in {root}; remove it"
            )
    files = render(read_all(root))
    changed = tuple(sorted(name for name, text in files.items() if _now(root / name) != text.encode()))
    removed = tuple(name for name in _rendered(root) if name not in files)
    if not check:
        for name in removed:
            (root / name).unlink()
        for name in changed:
            with atomic_write(root / name) as file:
                file.write(files[name])
    return Built(tuple(sorted(files)), changed, removed)


def render(submissions: list[Submission]) -> Mapping[str, str]:
    """Path below the leaderboards folder → content."""
    boards = make_boards(submissions)
    return {
        README: readme(boards),
        **{f"{TABLES}/{table.name}.csv": csv_file(table) for table in board_tables(boards)},
        **{f"{SITE}/{name}": page for name, page in site(boards).items()},
    }


def read_all(root: Path) -> list[Submission]:
    """All submissions of a leaderboards folder.

    Raises:
        UserError: One cannot be read: boards that leave it out would not be those of the folder.
    """
    found = []
    for path in submission_files(root):
        read = read_submission(path, path.relative_to(root).as_posix())
        if not isinstance(read, Submission):
            raise UserError(f"{read[0]}; `relbench leaderboard verify {root}` lists all problems")
        found.append(read)
    return found


def _now(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _rendered(root: Path) -> list[str]:
    """Files that an earlier build left, as paths below the root."""
    return sorted(
        path.relative_to(root).as_posix()
        for folder in (TABLES, SITE)
        for path in (root / folder).rglob("*")
        if path.is_symlink() or path.is_file()
    )
