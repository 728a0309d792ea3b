"""Pushing, against a hub that runs here: what is sent, and that nothing is sent unasked."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from interventions.errors import UserError
from relbench.commands.leaderboard import leaderboard
from relbench.leaderboards.push import uploads
from relbench.leaderboards.submission import SamplesFile
from tests.relbench.leaderboards.entries import english, write

pytest.importorskip("huggingface_hub")

_SAMPLES = b"\x1f\x8bsamples"


class FakeHub(ThreadingHTTPServer):
    """Enough of the hub's interface to commit to a dataset, and a record of what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.committed: dict[str, bytes] = {}
        self.message = ""
        self.refuses = 0


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.partition("?")[0]
        self.server.asked.append(self.path)
        if self.server.refuses:
            self._answer(self.server.refuses, {"error": "not for you"})
        elif path == "/api/datasets/org/boards/preupload/main":
            files = json.loads(body)["files"]
            modes = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]
            self._answer(200, {"files": modes})
        elif path == "/api/datasets/org/boards/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header":
                    self.server.message = line["value"]["summary"]
                else:
                    assert line["key"] == "file"
                    content = base64.b64decode(line["value"]["content"])
                    self.server.committed[line["value"]["path"]] = content
            url = "https://huggingface.co/datasets/org/boards"
            proposed = {"pullRequestUrl": f"{url}/discussions/3"} if "create_pr=1" in self.path else {}
            self._answer(200, {"commitUrl": f"{url}/commit/abc", "commitOid": "abc", **proposed})
        else:
            self._answer(404, {"error": f"no such place: {path}"})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    with FakeHub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    """A submission's file, with its samples and the model's beside it."""
    made = replace(
        english(), samples=SamplesFile("samples/english.jsonl.gz", sha256(_SAMPLES).hexdigest(), 1, 1)
    )
    path = write(made, tmp_path / "leaderboards")
    (path.parent / "samples").mkdir()
    (path.parent / made.samples.path).write_bytes(_SAMPLES)
    (path.parent / "model_meta.json").write_text("{}")
    return path


def _push(
    fake: FakeHub, submission: Path, *arguments: str, said: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it, with the hub's address and token from the environment."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": f"http://127.0.0.1:{fake.server_port}",
        "HF_TOKEN": "hf_made_up",
        "HF_HOME": str(submission.parent / "home"),
    }
    command = [
        sys.executable,
        "-m",
        "relbench",
        "leaderboard",
        "push",
        str(submission),
        "--repo",
        "org/boards",
    ]
    return subprocess.run(
        [*command, *arguments], input=said, env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_submission_is_committed_with_its_samples_under_its_own_path(
    fake: FakeHub, submission: Path
) -> None:
    done = _push(fake, submission, "--yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0, "https://huggingface.co/datasets/org/boards/commit/abc",
    )  # fmt: skip
    folder = submission.parent.relative_to(submission.parents[3]).as_posix()
    assert fake.committed == {
        f"{folder}/english.json": submission.read_bytes(),
        f"{folder}/model_meta.json": b"{}",
        f"{folder}/samples/english.jsonl.gz": _SAMPLES,
    }
    assert fake.message == "Submission english on made-up"


def test_a_pull_request_is_proposed_when_asked_for(fake: FakeHub, submission: Path) -> None:
    done = _push(fake, submission, "--yes", "--pull-request")
    assert done.stdout.splitlines()[-1].endswith("/discussions/3")
    assert any("create_pr=1" in path for path in fake.asked)


def test_nothing_is_sent_unasked(fake: FakeHub, submission: Path) -> None:
    tried = _push(fake, submission, "--dry-run")
    assert (tried.returncode, tried.stdout.count(" bytes\n")) == (0, 3)
    assert "nothing is sent to org/boards" in tried.stdout
    declined = _push(fake, submission, said="n\n")
    assert declined.returncode == 1
    # Nobody there to ask.
    assert _push(fake, submission).returncode == 1
    assert CliRunner().invoke(leaderboard, ["push", str(submission), "--yes"]).exit_code == 2
    assert fake.asked == []


def test_a_hub_that_refuses_is_one_line(fake: FakeHub, submission: Path) -> None:
    fake.refuses = 403
    done = _push(fake, submission, "--yes")
    assert done.returncode == 2
    assert done.stderr.startswith("relbench: error: the hub did not take org/boards: ")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_only_whole_submissions_in_their_place_are_pushed(submission: Path, tmp_path: Path) -> None:
    samples = submission.parent / "samples" / "english.jsonl.gz"
    samples.write_bytes(b"other")
    with pytest.raises(UserError, match="has changed"):
        uploads(submission)
    outside = tmp_path / "outside"
    outside.write_bytes(_SAMPLES)
    samples.unlink()
    samples.symlink_to(outside)
    with pytest.raises(UserError, match="no file"):
        uploads(submission)
    elsewhere = tmp_path / "english.json"
    elsewhere.write_bytes(submission.read_bytes())
    with pytest.raises(UserError, match="not in a leaderboards folder"):
        uploads(elsewhere)
    elsewhere.write_text("{}")
    with pytest.raises(UserError, match=r"english\.json"):
        uploads(elsewhere)
