"""The site on this machine, and for this machine only."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from interventions.errors import UserError
from relbench.leaderboards.build import SITE

HOST = "127.0.0.1"


class _Handler(SimpleHTTPRequestHandler):
    """Files of one folder, and no list of them."""

    def end_headers(self) -> None:
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def list_directory(self, path: Any) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: whoever serves the site looks at it in the browser."""


def make_server(root: Path, port: int) -> ThreadingHTTPServer:
    """A server of a leaderboards folder's site; `serve_forever` starts it.

    Args:
        root: The leaderboards folder.
        port: On 127.0.0.1; 0 for any that is free.

    Raises:
        UserError: The site is not built, or the port is taken.
    """
    site = root / SITE
    if not (site / "index.html").is_file():
        raise UserError(f"there is no site in {root}; run `relbench leaderboard build {root}` first")
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, directory=str(site)))
    except OSError as error:
        raise UserError(
            f"port {port} cannot be used: {error.strerror}; choose another with --port"
        ) from error
