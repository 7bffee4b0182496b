"""commands/fetch.py against a web server that misbehaves: what is downloaded is whole and verified, or not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.commands import fetch as fetching
from fairseq_resid.commands.extract import Damaged
from fairseq_resid.commands.fetch import FetchError, Fingerprint, RemoteFile, fetch

pytestmark = pytest.mark.once

CONTENT = b"\x1f\x8b" + random.Random(3).randbytes(299_998)  # begins as its name says
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT under any name; `script` says, request by request, how it misbehaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[str] = []
        self.asked: list[tuple[str, str | None]] = []
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

    def do_HEAD(self) -> None:
        self.server.asked.append((self.path, "HEAD"))
        code, length = {"/no-head": (405, 0), "/no-length": (200, None)}.get(self.path, (200, len(CONTENT)))
        self.answer(code, length, b"")

    def answer(self, code: int, length: object, body: bytes, part: str | None = None, kind: str | None = None) -> None:
        """Send an answer that says its length, if it has one, and then whatever its body is."""
        self.send_response(code)
        for name, value in (("Content-Length", length), ("Content-Range", part), ("Content-Type", kind)):
            if value is not None:
                self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = length != len(body)

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        act = self.server.script.pop(0) if self.server.script else "serve"
        size = len(CONTENT)
        if act.isdigit():
            self.send_error(int(act))
        elif act == "chunks":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"ffff\r\n" + CONTENT[:0xFFFF] + b"\r\nffff\r\ncut off")
            self.close_connection = True
        elif act == "page":
            page = b"<!DOCTYPE html>\n<html><body>Please log in</body></html>"
            self.answer(200, len(page), page, kind="text/html; charset=utf-8")
        elif act == "json":
            self.answer(200, 26, b'{"error": "quota is used"}')
        elif act == "empty":
            self.answer(200, 0, b"")
        elif act == "odd length":
            self.answer(200, "three", CONTENT)
        elif act == "no length":  # the end of the connection is the end of the file
            self.answer(200, None, CONTENT)
        elif act == "no length, cut off":
            self.answer(200, None, CONTENT[:50_000])
        elif act == "no length, too much":
            with contextlib.suppress(OSError):  # the other side may have enough before
                self.answer(200, None, CONTENT * 50)
        elif act == "huge":  # a length, and then nothing
            part = f"{asked.replace('=', ' ')}{10**12 - 1}/{10**12}" if asked and self.server.honours_ranges else None
            self.answer(206 if part else 200, 10**12, b"", part)
            self.rfile.read(1)
        elif act == "other part":
            self.answer(206, size, CONTENT, f"bytes 0-{size - 1}/{size}")
        else:
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.honours_ranges else 0
            if start >= size:
                self.answer(416, 0, b"", f"bytes */{size}")
                return
            end = start + 100_000 if act == "drop" else size
            part = f"bytes {start}-{size - 1}/{size}" if start else None
            self.answer(206 if start else 200, size - start, CONTENT[start:end], part)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def known(server: Server, **changed: Any) -> RemoteFile:
    told: dict[str, Any] = {"urls": (f"{server.url}/a.tgz",), "bytes": len(CONTENT), "sha256": SHA256, "md5": MD5}
    return RemoteFile("a.tgz", **{**told, **changed})


def get(file: RemoteFile, folder: Path, mirror: str | None = None, allow_other: bool = False) -> Fingerprint:
    pauses: list[float] = []
    return fetch(file, folder, mirror, allow_other, pauses.append)


def only_whole(folder: Path) -> None:
    """Assert that the file is there and nothing half made beside it."""
    assert {path.name for path in folder.iterdir()} == {"a.tgz", "a.tgz.json", ".a.tgz.lock"}
    assert (folder / "a.tgz").read_bytes() == CONTENT


def test_a_download_is_verified_and_kept(server: Server, tmp_path: Path) -> None:
    found = get(known(server), tmp_path)
    assert (found.sha256, found.md5, found.bytes, found.url) == (SHA256, MD5, len(CONTENT), f"{server.url}/a.tgz")
    assert json.loads((tmp_path / "a.tgz.json").read_text()) == asdict(found)
    only_whole(tmp_path)
    assert get(known(server), tmp_path) == found
    assert len(server.asked) == 1


def test_a_changed_file_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    get(known(server), tmp_path)
    (tmp_path / "a.tgz").write_bytes(b"something else")
    get(known(server), tmp_path)
    only_whole(tmp_path)


@pytest.mark.parametrize("record", [None, "{}", "[]", "no JSON"])
def test_a_file_brought_by_hand_is_taken_where_its_checksum_says_so(
    server: Server, tmp_path: Path, record: str | None
) -> None:
    (tmp_path / "a.tgz").write_bytes(CONTENT)
    if record is not None:
        (tmp_path / "a.tgz.json").write_text(record)
    get(known(server), tmp_path)
    only_whole(tmp_path)
    assert server.asked == []


@pytest.mark.parametrize("url", ["http://127.0.0.1/a b", "http://127.0.0.1:x/a"])
def test_a_broken_address_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"a\.tgz could not be downloaded"):
        get(RemoteFile("a.tgz", (url,)), tmp_path)


def test_a_chunked_answer_that_is_cut_off_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.script = ["chunks", "chunks"]
    get(known(server), tmp_path)
    only_whole(tmp_path)
    assert len(server.asked) == 3


def test_lost_connections_are_resumed(server: Server, tmp_path: Path) -> None:
    server.script = ["drop", "503", "drop"]
    get(known(server), tmp_path)
    assert [asked for _, asked in server.asked] == [None, "bytes=100000-", "bytes=100000-", "bytes=200000-"]
    only_whole(tmp_path)


@pytest.mark.parametrize("size_known", [True, False])
def test_the_partial_of_a_killed_run_is_resumed(server: Server, tmp_path: Path, size_known: bool) -> None:
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:123_456])
    get(known(server, bytes=len(CONTENT) if size_known else None), tmp_path)
    assert server.asked == [("/a.tgz", "bytes=123456-")]
    only_whole(tmp_path)


def test_a_partial_that_is_whole_already(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT)
    get(known(server, bytes=None), tmp_path)
    only_whole(tmp_path)


@pytest.mark.parametrize("length", [1000, len(CONTENT) + 1000])
def test_a_partial_of_something_else_is_begun_anew(server: Server, tmp_path: Path, length: int) -> None:
    (tmp_path / "a.tgz.partial").write_bytes(b"x" * length)
    get(known(server, bytes=None), tmp_path)
    only_whole(tmp_path)


def test_a_server_without_ranges_sends_it_whole(server: Server, tmp_path: Path) -> None:
    server.honours_ranges = False
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:1000])
    get(known(server), tmp_path)
    only_whole(tmp_path)


def test_alternates_are_tried_in_order(server: Server, tmp_path: Path) -> None:
    server.script = ["404", "page"]
    urls = (f"{server.url}/gone", f"{server.url}/login", f"{server.url}/good", f"{server.url}/never")
    assert get(known(server, urls=urls), tmp_path).url == urls[2]
    assert [path for path, _ in server.asked] == ["/gone", "/login", "/good"]
    only_whole(tmp_path)


def test_a_web_page_is_no_archive(server: Server, tmp_path: Path) -> None:
    server.script = ["page"]
    with pytest.raises(FetchError, match=r"a\.tgz: answers with a web page in place of the file"):
        get(known(server, bytes=None, sha256=None, md5=None), tmp_path)
    assert not (tmp_path / "a.tgz").exists()


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"bytes": 300_001}, "wrong size: 300000, but 300001 is expected"),
        ({"sha256": "0" * 64}, f"wrong sha256 checksum: {SHA256}, but {'0' * 64} is expected"),
        ({"md5": "1" * 32}, f"wrong md5 checksum: {MD5}, but {'1' * 32} is expected"),
    ],
)
def test_another_file_is_refused_unless_it_is_asked_for(
    server: Server, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(FetchError, match=said) as error:
        get(known(server, **changed), tmp_path)
    assert "--allow-other-data" in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} == {".a.tgz.lock"}
    get(known(server, **changed), tmp_path, allow_other=True)
    only_whole(tmp_path)
    # What was accepted once is not accepted without being asked again.
    with pytest.raises(FetchError, match=said):
        get(known(server, **changed), tmp_path)


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a.tgz"
    with pytest.raises(FetchError) as error:
        get(RemoteFile("a.tgz", (url,)), tmp_path)
    assert url in str(error.value) and "refused" in str(error.value) and "--raw" in str(error.value)


def test_a_server_that_never_answers_well_is_given_up(server: Server, tmp_path: Path) -> None:
    server.script = ["503"] * 9
    pauses: list[float] = []
    with pytest.raises(FetchError, match="Service Unavailable"):
        fetch(known(server), tmp_path, None, False, pauses.append)
    assert pauses == [2, 4, 8] and len(server.asked) == fetching.ATTEMPTS


def test_a_mirror_takes_the_place_of_all_addresses(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "a mirror"
    folder.mkdir()
    (folder / "a.tgz").write_bytes(CONTENT)
    out = tmp_path / "out"
    assert get(known(server), out, folder.as_uri() + "/").url == folder.as_uri() + "/a.tgz"
    only_whole(out)
    assert server.asked == []
    (out / "a.tgz").unlink()
    (out / "a.tgz.partial").write_bytes(CONTENT[:777])
    get(known(server), out, folder.as_uri())
    only_whole(out)
    (folder / "a.tgz").unlink()
    (out / "a.tgz").unlink()
    with pytest.raises(FetchError, match="No such file"):
        get(known(server), out, folder.as_uri())


def test_no_address_is_known(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"en-vi\.tgz: no address is known; give the folder that has it with --raw"):
        get(RemoteFile("en-vi.tgz"), tmp_path)


def test_a_full_disk_is_no_reason_to_try_again(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, count: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetching.Progress, "advance", full)
    with pytest.raises(OSError, match="No space left"):
        get(known(server), tmp_path)
    monkeypatch.undo()
    assert len(server.asked) == 1 and not (tmp_path / "a.tgz").exists()
    get(known(server), tmp_path)
    only_whole(tmp_path)


# ------------------------------------------------------------------------------------------------ wrong answers


@pytest.mark.parametrize("act", ["416", "empty", "json", "page"])
def test_an_answer_that_is_not_the_file_leads_to_the_next_address(server: Server, tmp_path: Path, act: str) -> None:
    server.script = [act]
    urls = (f"{server.url}/bad", f"{server.url}/good")
    file = known(server, urls=urls, bytes=None, sha256=None, md5=None)
    assert get(file, tmp_path, allow_other=True).url == urls[1]
    assert server.asked == [("/bad", None), ("/good", None)]
    only_whole(tmp_path)


@pytest.mark.parametrize(
    "act, said",
    [
        ("416", "HTTP 416"),
        ("empty", "answers with an empty file in place of the file"),
        ("json", "answers with data of another format in place of the file"),
    ],
)
def test_what_is_no_archive_is_never_kept(server: Server, tmp_path: Path, act: str, said: str) -> None:
    server.script = [act]
    with pytest.raises(FetchError, match=rf"a\.tgz: {said}"):
        get(known(server), tmp_path, allow_other=True)
    assert {path.name for path in tmp_path.iterdir()} == {".a.tgz.lock"}


def test_a_login_page_is_no_text(server: Server, tmp_path: Path) -> None:
    server.script = ["page"]
    with pytest.raises(FetchError, match=r"train\.en: answers with a web page in place of the file"):
        get(RemoteFile("train.en", (f"{server.url}/train.en",)), tmp_path, allow_other=True)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("act", ["page", "json", "empty", "huge", "416", "404", "no length, cut off", "drop"])
def test_a_good_partial_outlives_a_bad_answer(
    server: Server, tmp_path: Path, act: str, ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 1)
    monkeypatch.setattr(fetching, "SILENCE", 2)
    server.honours_ranges = ranges
    server.script = [act, act] if act == "416" else [act]  # asked again without a range
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:123_456])
    with pytest.raises(FetchError):
        get(known(server), tmp_path)
    there = (tmp_path / "a.tgz.partial").read_bytes()
    assert there == CONTENT[: len(there)] and len(there) >= 123_456
    server.honours_ranges = True
    get(known(server), tmp_path)
    assert server.asked[-1] == ("/a.tgz", f"bytes={len(there)}-")
    only_whole(tmp_path)


@pytest.mark.parametrize("start", [0, 1000])
def test_a_wrong_size_is_refused_before_it_is_downloaded(
    server: Server, tmp_path: Path, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "SILENCE", 2)
    server.script = ["huge"]
    if start:
        (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:start])
    said = rf"wrong size: {10**12}, but 300000 is expected \(--allow-other-data accepts it\)"
    with pytest.raises(FetchError, match=said):
        get(known(server), tmp_path)
    assert len(server.asked) == 1


def test_a_server_that_tells_no_length_and_sends_too_much_is_refused(server: Server, tmp_path: Path) -> None:
    server.script = ["no length, too much"]
    with pytest.raises(FetchError, match="sends more than the 300000 bytes that are expected"):
        get(known(server), tmp_path)
    assert len(server.asked) == 1
    get(known(server), tmp_path)
    only_whole(tmp_path)


@pytest.mark.parametrize("act", ["no length", "odd length"])
@pytest.mark.parametrize("start", [0, 1000, len(CONTENT) + 1000])
def test_without_a_length_the_end_is_the_end(server: Server, tmp_path: Path, act: str, start: int) -> None:
    server.script = ["416", act] if start else [act]
    if start:
        (tmp_path / "a.tgz.partial").write_bytes((CONTENT + CONTENT)[:start])
    get(known(server, bytes=None, sha256=None, md5=None), tmp_path)
    only_whole(tmp_path)


def test_a_short_answer_without_a_length_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.script = ["no length, cut off"]
    get(known(server), tmp_path)
    assert [asked for _, asked in server.asked] == [None, "bytes=50000-"]
    only_whole(tmp_path)


def test_other_data_is_not_downloaded_twice_for_a_lost_connection(server: Server, tmp_path: Path) -> None:
    """What this address has sent a moment ago is no other file's beginning."""
    server.script = ["drop", "drop"]
    get(known(server, sha256="0" * 64), tmp_path, allow_other=True)
    assert [asked for _, asked in server.asked] == [None, "bytes=100000-", "bytes=200000-"]
    only_whole(tmp_path)


def test_another_part_than_asked_for_is_not_appended(server: Server, tmp_path: Path) -> None:
    """Nothing is known of the file, so that no checksum would tell."""
    server.script = ["other part"]
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:1000])
    get(known(server, bytes=None, sha256=None, md5=None), tmp_path)
    assert [asked for _, asked in server.asked] == ["bytes=1000-", None]
    only_whole(tmp_path)


@pytest.mark.parametrize("length", [1000, len(CONTENT) + 1000])
def test_a_partial_of_something_else_is_told_by_its_content(server: Server, tmp_path: Path, length: int) -> None:
    server.honours_ranges = False
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:700] + b"x" * (length - 700))
    get(known(server, bytes=None, sha256=None, md5=None), tmp_path)
    only_whole(tmp_path)


@pytest.mark.parametrize("mirror", ["nowhere", "http://exa mple", "http://h\u0000st", "http://[", "odd://host"])
def test_a_mirror_that_is_no_address_is_one_line(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(FetchError, match=r"a\.tgz could not be downloaded"):
        get(RemoteFile("a.tgz"), tmp_path, mirror)
    assert fetching.size_at(fetching.address("a.tgz", mirror)) is None


def test_the_size_that_a_server_tells(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a b.tgz").write_bytes(CONTENT[:777])
    assert fetching.size_at(fetching.address("a.tgz", server.url + "/")) == len(CONTENT)
    assert fetching.size_at(fetching.address("a b.tgz", tmp_path.as_uri())) == 777
    for url in (
        f"{server.url}/no-head",
        f"{server.url}/no-length",
        (tmp_path / "none").as_uri(),
        "http://127.0.0.1:9/",
    ):
        assert fetching.size_at(url) is None


def test_a_server_that_does_not_answer_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert fetching.size_at(f"http://127.0.0.1:{silent.getsockname()[1]}/a.tgz") is None


def test_a_damaged_download_is_removed_and_a_users_file_stays(tmp_path: Path) -> None:
    for url, said in (
        ("http://host/a.tgz", "it was removed, and the same command downloads it again"),
        (None, "replace it with a whole file"),
    ):
        for name in ("a.tgz", "a.tgz.json"):
            (tmp_path / name).write_bytes(b"x")
        with pytest.raises(ValueError, match=said), fetching.usable(tmp_path / "a.tgz", Fingerprint(1, 0, "", "", url)):
            raise Damaged("a.tgz: cut off")
        assert len(list(tmp_path.iterdir())) == (0 if url else 2)
