"""Downloads are verified and resumed, use alternates and mirrors, and leave a complete file or none."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.console import further_lines
from fairseq_resid.data import fetch as fetching
from fairseq_resid.data.fetch import FetchError, Fingerprint, fetch
from fairseq_resid.data.unpacking import Damaged
from support.web_server import CONTENT, MD5, SHA256, Server, known, only_whole

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: None)


def test_download_is_verified_and_kept_until_it_changes(server: Server, tmp_path: Path) -> None:
    found = fetch(known(server), tmp_path)
    assert (found.sha256, found.md5, found.bytes, found.url) == (SHA256, MD5, len(CONTENT), f"{server.url}/a.tgz")
    assert json.loads((tmp_path / "a.tgz.json").read_text()) == asdict(found)
    only_whole(tmp_path)
    assert fetch(known(server), tmp_path) == found
    assert len(server.requests) == 1
    (tmp_path / "a.tgz").write_bytes(b"something else")
    fetch(known(server), tmp_path)
    only_whole(tmp_path)


@pytest.mark.parametrize("changed", [{}, {"sha256": "0" * 64}], ids=["known file", "other file"])
def test_lost_connections_resume_the_download(server: Server, tmp_path: Path, changed: dict[str, Any]) -> None:
    """A partial file from the same URL in the same run is not mistaken for the beginning of another file."""
    server.script = ["drop", "503", "drop"]
    fetch(known(server, **changed), tmp_path, allow_other=bool(changed))
    assert [requested for _, requested in server.requests] == [None, "bytes=100000-", "bytes=100000-", "bytes=200000-"]
    only_whole(tmp_path)


@pytest.mark.parametrize("size_known", [True, False])
def test_partial_file_of_killed_run_is_resumed(server: Server, tmp_path: Path, size_known: bool) -> None:
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:123_456])
    fetch(known(server, bytes=len(CONTENT) if size_known else None), tmp_path)
    assert server.requests == [("/a.tgz", "bytes=123456-")]
    only_whole(tmp_path)


@pytest.mark.parametrize("length", [1000, len(CONTENT) + 1000])
def test_partial_file_of_another_download_restarts_the_download(server: Server, tmp_path: Path, length: int) -> None:
    (tmp_path / "a.tgz.partial").write_bytes(b"x" * length)
    fetch(known(server, bytes=None), tmp_path)
    only_whole(tmp_path)


def test_server_without_ranges_sends_whole_file(server: Server, tmp_path: Path) -> None:
    server.honours_ranges = False
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:1000])
    fetch(known(server), tmp_path)
    only_whole(tmp_path)


def test_alternates_are_tried_in_order(server: Server, tmp_path: Path) -> None:
    server.script = ["404", "page"]
    urls = (f"{server.url}/gone", f"{server.url}/login", f"{server.url}/good", f"{server.url}/never")
    assert fetch(known(server, urls=urls), tmp_path).url == urls[2]
    assert [path for path, _ in server.requests] == ["/gone", "/login", "/good"]
    only_whole(tmp_path)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"bytes": 300_001}, "wrong size: 300000; expected 300001"),
        ({"sha256": "0" * 64}, f"wrong sha256 checksum: {SHA256}; expected {'0' * 64}"),
        ({"md5": "1" * 32}, f"wrong md5 checksum: {MD5}; expected {'1' * 32}"),
    ],
)
def test_different_file_is_refused_without_allow_other_data(
    server: Server, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(FetchError, match=said) as error:
        fetch(known(server, **changed), tmp_path)
    assert "--allow-other-data" in "\n".join(further_lines(error.value))
    assert {path.name for path in tmp_path.iterdir()} == {".a.tgz.lock"}
    fetch(known(server, **changed), tmp_path, allow_other=True)
    only_whole(tmp_path)
    # The file is now complete, but using it again still requires allow_other.
    with pytest.raises(FetchError, match=said):
        fetch(known(server, **changed), tmp_path)


def test_mirror_replaces_all_addresses(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "a mirror"
    folder.mkdir()
    (folder / "a.tgz").write_bytes(CONTENT)
    out = tmp_path / "out"
    assert fetch(known(server), out, folder.as_uri() + "/").url == folder.as_uri() + "/a.tgz"
    only_whole(out)
    assert server.requests == []
    (out / "a.tgz").unlink()
    (out / "a.tgz.partial").write_bytes(CONTENT[:777])
    fetch(known(server), out, folder.as_uri())
    only_whole(out)
    (folder / "a.tgz").unlink()
    (out / "a.tgz").unlink()
    with pytest.raises(FetchError, match="No such file"):
        fetch(known(server), out, folder.as_uri())


@pytest.mark.parametrize("act", ["416", "empty", "page"])
def test_response_that_is_not_an_archive_is_never_kept(server: Server, tmp_path: Path, act: str) -> None:
    server.script = [act]
    with pytest.raises(FetchError, match=r"a\.tgz: "):
        fetch(known(server), tmp_path, allow_other=True)
    assert {path.name for path in tmp_path.iterdir()} == {".a.tgz.lock"}


@pytest.mark.parametrize("act", ["page", "416", "drop"])
def test_good_partial_file_survives_bad_response(
    server: Server, tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 1)
    server.script = [act, act] if act == "416" else [act]  # requested again without a range
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:123_456])
    with pytest.raises(FetchError):
        fetch(known(server), tmp_path)
    there = (tmp_path / "a.tgz.partial").read_bytes()
    assert there == CONTENT[: len(there)] and len(there) >= 123_456
    fetch(known(server), tmp_path)
    assert server.requests[-1] == ("/a.tgz", f"bytes={len(there)}-")
    only_whole(tmp_path)


def test_damaged_download_is_removed_but_user_file_stays(tmp_path: Path) -> None:
    for url, said in (
        ("http://host/a.tgz", "the file was removed; run the same command to download it again"),
        (None, "replace the file"),
    ):
        for name in ("a.tgz", "a.tgz.json"):
            (tmp_path / name).write_bytes(b"x")
        with pytest.raises(ValueError, match=said), fetching.usable(tmp_path / "a.tgz", Fingerprint(1, 0, "", "", url)):
            raise Damaged("a.tgz: cut off")
        assert len(list(tmp_path.iterdir())) == (0 if url else 2)
