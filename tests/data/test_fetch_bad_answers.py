"""Downloads from servers that send wrong, too much, too little or no data."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_resid.data import fetch as fetching
from fairseq_resid.data.fetch import FetchError, Fingerprint, RemoteFile
from fairseq_resid.data.unpacking import Damaged
from support.web_server import CONTENT, Server, get, known, only_whole

pytestmark = pytest.mark.once


@pytest.mark.parametrize("act", ["416", "empty", "page"])
def test_wrong_response_falls_back_to_next_address(server: Server, tmp_path: Path, act: str) -> None:
    server.script = [act]
    urls = (f"{server.url}/bad", f"{server.url}/good")
    file = known(server, urls=urls, bytes=None, sha256=None, md5=None)
    assert get(file, tmp_path, allow_other=True).url == urls[1]
    assert server.requests == [("/bad", None), ("/good", None)]
    only_whole(tmp_path)


@pytest.mark.parametrize(
    "act, said",
    [
        ("416", "HTTP 416"),
        ("empty", "the server sent an empty file instead of the file"),
        ("page", "the server sent a web page instead of the file"),
    ],
)
def test_response_that_is_not_an_archive_is_never_kept(server: Server, tmp_path: Path, act: str, said: str) -> None:
    server.script = [act]
    with pytest.raises(FetchError, match=rf"a\.tgz: {said}"):
        get(known(server), tmp_path, allow_other=True)
    assert {path.name for path in tmp_path.iterdir()} == {".a.tgz.lock"}


def test_login_page_is_not_accepted_as_text(server: Server, tmp_path: Path) -> None:
    server.script = ["page"]
    with pytest.raises(FetchError, match=r"train\.en: the server sent a web page instead of the file"):
        get(RemoteFile("train.en", (f"{server.url}/train.en",)), tmp_path, allow_other=True)


@pytest.mark.parametrize("act", ["page", "empty", "416", "404", "drop"])
def test_good_partial_file_survives_bad_response(
    server: Server, tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ATTEMPTS", 1)
    server.script = [act, act] if act == "416" else [act]  # requested again without a range
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:123_456])
    with pytest.raises(FetchError):
        get(known(server), tmp_path)
    there = (tmp_path / "a.tgz.partial").read_bytes()
    assert there == CONTENT[: len(there)] and len(there) >= 123_456
    get(known(server), tmp_path)
    assert server.requests[-1] == ("/a.tgz", f"bytes={len(there)}-")
    only_whole(tmp_path)


def test_wrong_size_is_refused_before_download(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SILENCE", 2)
    server.script = ["huge"]
    said = rf"wrong size: {10**12}; expected 300000 \(use --allow-other-data to accept it\)"
    with pytest.raises(FetchError, match=said):
        get(known(server), tmp_path)
    assert len(server.requests) == 1


@pytest.mark.parametrize("start", [0, len(CONTENT) + 1000])
def test_response_without_length_ends_with_the_connection(server: Server, tmp_path: Path, start: int) -> None:
    server.script = ["416", "no length"] if start else ["no length"]
    if start:
        (tmp_path / "a.tgz.partial").write_bytes((CONTENT + CONTENT)[:start])
    get(known(server, bytes=None, sha256=None, md5=None), tmp_path)
    only_whole(tmp_path)


def test_short_response_without_length_is_retried(server: Server, tmp_path: Path) -> None:
    server.script = ["no length, cut off"]
    get(known(server), tmp_path)
    assert [requested for _, requested in server.requests] == [None, "bytes=50000-"]
    only_whole(tmp_path)


def test_different_data_resumes_after_lost_connection(server: Server, tmp_path: Path) -> None:
    """A partial file from the same URL in the same run is not mistaken for the beginning of another file."""
    server.script = ["drop", "drop"]
    get(known(server, sha256="0" * 64), tmp_path, allow_other=True)
    assert [requested for _, requested in server.requests] == [None, "bytes=100000-", "bytes=200000-"]
    only_whole(tmp_path)


@pytest.mark.parametrize("mirror", ["nowhere", "http://exa mple", "odd://host"])
def test_invalid_mirror_gives_a_one_line_error(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(FetchError, match=r"a\.tgz: download failed"):
        get(RemoteFile("a.tgz"), tmp_path, mirror)


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
