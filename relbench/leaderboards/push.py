"""A submission's files to a dataset on the Hugging Face hub. Nothing is sent unless it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from interventions.errors import UserError
from interventions.files import sha256_file
from relbench.leaderboards.names import META
from relbench.leaderboards.submission import Submission, read_submission


@dataclass(frozen=True)
class Upload:
    """One file: where it is, its path in the dataset, and its bytes."""

    path: Path
    target: str
    size: int


def uploads(path: Path) -> tuple[Submission, list[Upload]]:
    """The files of the submission at `path`, by the layout of a leaderboards folder.

    Raises:
        UserError: It is no submission, lies in no leaderboards folder, or files of it are missing or changed.
    """
    path = path.absolute()
    read = read_submission(path, path.name)
    if not isinstance(read, Submission):
        raise UserError(str(read[0]))
    if len(path.parts) < 5 or path.parts[-4] != "results":
        raise UserError(
            f"{path} is not in a leaderboards folder: results/<model>/<revision>/<submission>.json"
        )
    root = path.parents[3]
    files = [path, path.parent / read.samples.path, path.parent / META]
    for file in files:
        if file.is_symlink() or not file.is_file():
            raise UserError(
                f"there is no file {file}; make the submission again with `relbench leaderboard add`"
            )
        if not file.resolve().is_relative_to(path.parent.resolve()):
            raise UserError(f"{file} is outside of the submission's folder")
    if sha256_file(files[1]) != read.samples.sha256:
        raise UserError(
            f"{files[1]} has changed since the submission was made; `relbench leaderboard verify`"
        )
    return read, [
        Upload(file, file.relative_to(root).as_posix(), file.stat().st_size) for file in sorted(files)
    ]


def push(
    submission: Submission,
    files: Sequence[Upload],
    repo: str,
    *,
    pull_request: bool = False,
    endpoint: str | None = None,
) -> str:
    """Commit files to an existing dataset on the hub, with the token that `hf auth login` left.

    Args:
        submission: Whose files they are.
        files: From `uploads`.
        repo: The dataset, `<org>/<name>`.
        pull_request: Propose the commit instead of making it.
        endpoint: Of the hub; huggingface_hub's own when not given, which reads HF_ENDPOINT.

    Returns:
        Address of the commit or pull request.

    Raises:
        UserError: huggingface_hub is missing, or the hub refuses.
    """
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise UserError("pushing needs huggingface_hub; install relbench-lm[hub]") from error
    # The errors of whichever HTTP library the hub's is built on.
    bases = [one for one in HfHubHTTPError.__mro__ if issubclass(one, Exception)]
    transport = next((one for one in bases if one.__name__ == "HTTPError"), HfHubHTTPError)
    operations = [CommitOperationAdd(path_in_repo=one.target, path_or_fileobj=one.path) for one in files]
    try:
        done = HfApi(endpoint=endpoint).create_commit(
            repo,
            operations,
            repo_type="dataset",
            commit_message=f"Submission {submission.id} on {submission.model.id.name}",
            create_pr=pull_request,
        )
    except (HfHubHTTPError, HFValidationError, transport, OSError) as error:
        raise UserError(f"the hub did not take {repo}: {error}") from error
    return str(done.pr_url or done.commit_url)
