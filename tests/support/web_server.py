"""A web server that misbehaves according to a script."""

from __future__ import annotations

import hashlib
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fairseq_resid.data.fetch import RemoteFile

CONTENT = b"\x1f\x8b" + random.Random(3).randbytes(299_998)  # starts like a gzip file
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT under any name. `script` lists how the server misbehaves on each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[str] = []
        self.requests: list[tuple[str, str | None]] = []
        self.honours_ranges = True
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, code: int, length: object, body: bytes, part: str | None = None, kind: str | None = None) -> None:
        """Send a response with this body; its declared length may differ or be missing."""
        self.send_response(code)
        for name, value in (("Content-Length", length), ("Content-Range", part), ("Content-Type", kind)):
            if value is not None:
                self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = length != len(body)

    def do_GET(self) -> None:
        requested = self.headers.get("Range")
        self.server.requests.append((self.path, requested))
        act = self.server.script.pop(0) if self.server.script else "serve"
        size = len(CONTENT)
        if act.isdigit():
            self.send_error(int(act))
        elif act == "page":
            page = b"<!DOCTYPE html>\n<html><body>Please log in</body></html>"
            self.answer(200, len(page), page, kind="text/html; charset=utf-8")
        elif act == "empty":
            self.answer(200, 0, b"")
        else:
            start = int(requested.removeprefix("bytes=").rstrip("-")) if requested and self.server.honours_ranges else 0
            if start >= size:
                self.answer(416, 0, b"", f"bytes */{size}")
                return
            end = start + 100_000 if act == "drop" else size
            part = f"bytes {start}-{size - 1}/{size}" if start else None
            self.answer(206 if start else 200, size - start, CONTENT[start:end], part)


def known(server: Server, **changed: Any) -> RemoteFile:
    told: dict[str, Any] = {"urls": (f"{server.url}/a.tgz",), "bytes": len(CONTENT), "sha256": SHA256, "md5": MD5}
    return RemoteFile("a.tgz", **{**told, **changed})


def only_whole(folder: Path) -> None:
    """Assert that the folder contains the complete file and no partial files."""
    assert {path.name for path in folder.iterdir()} == {"a.tgz", "a.tgz.json", ".a.tgz.lock"}
    assert (folder / "a.tgz").read_bytes() == CONTENT
