"""Archives and markup designed to hang, to fill memory or disk, or to write elsewhere: one clear error, quickly."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from fairseq_resid.data import extract, unpacking
from support import hostile, mirror

pytestmark = pytest.mark.once

MIB = 1 << 20


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, size, link
    return member.tobuf(tarfile.GNU_FORMAT)


def member(name: str, content: bytes = b"one\n", kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, kind, len(content)) + content + bytes(-len(content) % 512)


def pax(*records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return member("pax", b"".join(records), kind)


def record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d" % length + rest


END = bytes(1024)
ZEROS = gzip.compress(bytes(16 * MIB), mtime=0)  # one of several streams in a file


def unpacked(path: Path, limit: int = 0) -> str:
    """Unpack an archive in another process, which must be fast and use little memory; return its error."""

    def load(file: str) -> None:
        extract.unpack(Path(file), path.parent / "out")

    found = hostile.loaded({"unpack": load}, path)
    assert found["grown"] < 100, found
    said: str = found["said"]["unpack"]
    assert "died" not in said and "Error:" not in said, said
    return said


def entries(folder: Path) -> int:
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


# ------------------------------------------------------------------------------------------------ markup


def repeated(text: bytes, size: int = MIB) -> bytes:
    return text * (size // len(text))


@pytest.mark.parametrize("before", [b"<!---->", b"<!-- -->\n", b" ", b"<?xml>", b"<!--", b"<?xml", b"<!doctype "])
def test_web_page_check_takes_linear_time(before: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(repeated(before))
    assert "a.tgz: " in unpacked(tmp_path / "a.tgz")
    assert extract.is_web_page(repeated(b"<!---->") + b"<html>")
    assert not extract.is_web_page(repeated(before) + b"text")


@pytest.mark.parametrize("text", [b"<seg>", b"<seg", b"<seg >x", b"</seg>", b"<segment>", b"<seg\xc2\xa0"])
def test_unclosed_segments_are_read_in_linear_time(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.sgm").write_bytes(repeated(text, 4 * MIB))
    found = hostile.loaded(
        {"convert": lambda file: extract.convert(Path(file), "a.sgm", tmp_path / "out")}, tmp_path / "a.sgm"
    )
    said = found["said"]["convert"]
    assert "a.sgm: the <seg> at byte 0 is not closed" in said or "a.sgm: contains no <seg>" in said


def test_last_segment_without_end_gives_an_error() -> None:
    """Earlier versions dropped the sentence, so the two sides of a corpus no longer matched."""
    with pytest.raises(ValueError, match=r"a\.xml: the <seg> at byte 15 is not closed"):
        extract.segments(b"<seg>one</seg>\n<seg>two", "a.xml")
    assert extract.segments(b"<segment><seg>a<seg>b</seg><seg id='2'\n>c</SEG></seg>", "a.xml") == ["a<seg>b", "c"]


@pytest.mark.parametrize("text", [b"<a>", b"<a></a>", b"<" + b"a" * 99, b"<a " + b" " * 99, b" ", b"</a>"])
def test_tag_lines_are_read_in_linear_time(text: bytes, tmp_path: Path) -> None:
    name = "train.tags.en-vi.en"
    (tmp_path / name).write_bytes(repeated(text, 4 * MIB))
    found = hostile.loaded(
        {"convert": lambda file: extract.convert(Path(file), name, tmp_path / "out")}, tmp_path / name
    )
    assert found["said"]["convert"] == "loaded NoneType"


# ------------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_extended_header_of_8_gb_is_refused(kind: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(gzip.compress(header("x", kind, 8 << 30)) + ZEROS * 20)
    assert "an extended header of 8,589,934,592 bytes; must be at most 65,536" in unpacked(tmp_path / "a.tgz")


def test_data_after_the_end_of_a_tar_is_limited(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(gzip.compress(member("x") + END) + ZEROS * 100)
    assert "a.tgz: unpacks to more than 1.1 GB" in unpacked(tmp_path / "a.tgz")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_skipped_member_counts_toward_unpacked_limit(
    compress: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "UNPACKED_BYTES", 16 * MIB)
    (tmp_path / "a.tgz").write_bytes(compress(header("x", size=32 * MIB) + bytes(32 * MIB) + member("y") + END))
    with pytest.raises(ValueError, match=r"a\.tgz: unpacks to more than"):
        extract.extract(tmp_path / "a.tgz", {"y": tmp_path / "y"})
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("part", [b"", b"<url>x</url>\n"], ids=["empty streams", "dropped lines"])
def test_discarded_text_counts_toward_unpacked_limit(
    part: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "UNPACKED_BYTES", MIB)
    inner = gzip.compress(part * 500_000, mtime=0) if part else gzip.compress(b"") * 5000
    (tmp_path / "a.tgz").write_bytes(gzip.compress(member("train.tags.en.gz", inner) + END))
    with pytest.raises(ValueError, match=r"a\.tgz: unpacks to more than"):
        extract.extract(tmp_path / "a.tgz", {"train.tags.en.gz": tmp_path / "text"})
    assert not (tmp_path / "text").exists()


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.XGLTYPE, tarfile.XHDTYPE])
def test_countless_headers_are_refused(kind: bytes, tmp_path: Path) -> None:
    some = gzip.compress(b"".join(header("x/" if kind == tarfile.DIRTYPE else f"x{i}", kind) for i in range(10_000)), 9)
    (tmp_path / "a.tgz").write_bytes(some * 40)
    said = unpacked(tmp_path / "a.tgz") if kind != tarfile.REGTYPE else "a.tgz: unpacks to more than"
    assert "a.tgz: unpacks to more than" in said
    with pytest.raises(ValueError, match="unpacks to more than"):
        extract.extract(tmp_path / "a.tgz", {"y": tmp_path / "y"})


def test_folders_of_deeply_nested_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "UNPACKED_BYTES", 1000 * unpacking.FILE_BYTES)
    monkeypatch.setattr(unpacking, "UNPACKED_FACTOR", 1)
    names = ["/".join([f"x{number}", *"abcdefghijklmnopqrst", "file"]) for number in range(500)]
    mirror.archive(tmp_path / "a.tgz", dict.fromkeys(names, ""))
    assert "a.tgz: unpacks to more than" in unpacked(tmp_path / "a.tgz")
    assert entries(tmp_path / "out") < 1000


@pytest.mark.parametrize("suffix", ["tgz", "zip"])
@pytest.mark.parametrize("name", ["d/" * 200 + "x", "/".join(["d" * 250] * 5), "x" * 256, "é" * 128], ids=len)
def test_member_with_overlong_name_is_refused(name: str, suffix: str, tmp_path: Path) -> None:
    mirror.archive(tmp_path / f"a.{suffix}", {name: ""})
    assert "has too long a name: must be at most 1,024 bytes in 32 parts of 255 bytes" in unpacked(
        tmp_path / f"a.{suffix}"
    )
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------ tar


def test_names_and_sizes_of_extended_headers_are_used(tmp_path: Path) -> None:
    """Like tarfile, we support long pax and GNU names, and a size that only the extended header contains."""
    long, big = "d" * 120 + "/" + "é" * 60, b"text\n" * 200
    content = io.BytesIO()
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        with tarfile.open(fileobj=content, mode="w", format=format) as tar:
            made = tarfile.TarInfo(f"{format}/{long}" if format != tarfile.USTAR_FORMAT else "d" * 120 + "/short")
            made.size, made.pax_headers = len(big), {"comment": "x" * 900}
            tar.addfile(made, io.BytesIO(big))
        content.seek(content.getvalue().rstrip(b"\0").rfind(b"text\n") // 512 * 512 + 512)
    moved = pax(record(b"size", b"%d" % len(big)), record(b"path", b"moved"))
    ignored = pax(record(b"path", b"global"), kind=tarfile.XGLTYPE)
    body = content.getvalue()[: content.tell()] + ignored + moved + header("x") + big + bytes(-len(big) % 512) + END
    (tmp_path / "a.tar").write_bytes(body)
    extract.unpack(tmp_path / "a.tar", tmp_path / "out")
    found = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    names = [f"{tarfile.PAX_FORMAT}/{long}", f"{tarfile.GNU_FORMAT}/{long}", "d" * 120 + "/short", "moved"]
    assert found == dict.fromkeys(names, big)


def sparse() -> bytes:
    whole = bytearray(header("x", tarfile.GNUTYPE_SPARSE, 0))
    whole[386:410] = b"00000000000\0" + b"00000000000\0"
    whole[483:495] = b"77777777777\0"
    whole[148:156] = b"        "
    whole[148:156] = b"%06o\0 " % sum(whole)
    return bytes(whole)


LONG_NUMBER = b"9" * 5000
HOSTILE_TARS: dict[str, tuple[Iterable[bytes], str]] = {
    "sparse, old": ([sparse()], "member 'x' is not a regular file"),
    "sparse, pax": (
        [pax(record(b"GNU.sparse.major", b"1"), record(b"GNU.sparse.realsize", b"9" * 12)), member("x")],
        "member 'x' is not a regular file",
    ),
    "hard link outside": ([header("x", tarfile.LNKTYPE, link="../../secret")], "leads outside"),
    "hard link inside": ([member("y"), header("x", tarfile.LNKTYPE, link="y")], "member 'x' is not a regular file"),
    "device": ([header("x", tarfile.BLKTYPE)], "member 'x' is not a regular file"),
    "unknown kind": ([header("x", b"Z")], "member 'x' is not a regular file"),
    "through a link": ([header("x", tarfile.SYMTYPE, link="."), member("x/y")], "member 'x' is not a regular file"),
    "link in pax": ([pax(record(b"linkpath", b"/etc")), header("x", tarfile.SYMTYPE)], "leads outside"),
    "path in pax": ([pax(record(b"path", b"../evil")), member("x")], "member '../evil' leads outside"),
    "long name outside": ([member("L", b"a/../../evil\0", tarfile.GNUTYPE_LONGNAME), member("x")], "leads outside"),
    "NUL in pax": ([pax(record(b"path", b"a\0b")), member("x")], "has a NUL byte in its name"),
    "long link": ([pax(record(b"linkpath", b"a/" * 30_000)), header("x", tarfile.SYMTYPE)], "is not a regular file"),
    "twice": ([member("x"), member("./x")], "member 'x' appears twice"),
    "file and folder": ([member("x"), member("x/y")], "member 'x/y' appears twice"),
    "folder and file": ([member("x/y"), member("x")], "member 'x' appears twice"),
    "empty name": ([member("")], "member '' has no name"),
    "truncated": ([header("x", size=9999), b"one"], "damaged or truncated (the archive ends within a member)"),
    "cut off in a header": ([member("x"), header("y")[:100]], "damaged or truncated"),
    "wrong checksum": ([member("x"), header("y").replace(b"y", b"z")], "damaged or truncated (bad checksum)"),
    "negative size": ([header("x", size=-512), member("y")], "damaged or truncated (a member has a negative size)"),
    "size of 2^90": ([header("x", size=1 << 70)], "damaged or truncated"),
    "long size in pax": ([pax(record(b"size", LONG_NUMBER)), member("x")], "damaged or truncated (invalid number"),
    "digits in pax": ([pax(b"1" * 60_000), member("x")], "damaged or truncated (invalid"),
    "record too long": ([pax(b"99 path=y\n"), member("x")], "damaged or truncated (invalid extended header)"),
    "record of length 0": ([pax(b"0 path=y\n"), member("x")], "damaged or truncated (invalid extended header)"),
    "many records": ([pax(*(record(b"k%d" % i, b"") for i in range(999))), member("x")], "(invalid extended header)"),
    "pax at the end": ([pax(record(b"path", b"y"))], "damaged or truncated"),
}


@pytest.mark.parametrize("kind", HOSTILE_TARS)
def test_hostile_tar_gives_a_clear_error(kind: str, tmp_path: Path) -> None:
    blocks, said = HOSTILE_TARS[kind]
    is_cut = "truncated (the archive" in said or "cut" in kind
    (tmp_path / "a.tar").write_bytes(b"".join(blocks) + (b"" if is_cut else END))
    (tmp_path / "a.tgz").write_bytes(gzip.compress(b"".join(blocks) + (b"" if is_cut else END)))
    for name in ("a.tar", "a.tgz"):
        found = unpacked(tmp_path / name)
        assert f"{name}: " in found and said in found
        for file in (tmp_path / "out").rglob("*") if (tmp_path / "out").exists() else ():
            assert not file.is_symlink()
            if file.is_file():
                file.unlink()
    assert not (tmp_path / "evil").exists()


def test_strange_names_are_unpacked_and_shown_escaped(tmp_path: Path) -> None:
    """Names that differ only in case, are not UTF-8, or contain control characters are different files."""
    names = [b"x", b"X", b"\xff\xfe", b"a\n\x1b[31m"]
    blocks = [pax(record(b"path", name)) + member("y", name) for name in names]
    (tmp_path / "a.tgz").write_bytes(gzip.compress(b"".join([*blocks, END])))
    extract.unpack(tmp_path / "a.tgz", tmp_path / "out")
    assert {name: Path(os.fsdecode(name)).name for name in os.listdir(os.fsencode(tmp_path / "out"))}.keys() == {*names}
    (tmp_path / "a.tgz").write_bytes(gzip.compress(b"".join([blocks[3], *blocks, END])))
    assert r"member 'a\n\x1b[31m' appears twice" in unpacked(tmp_path / "a.tgz")


# ------------------------------------------------------------------------------------------------ compression


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "empty file"),
        (b"\x1f\x8b", "the compressed data ends early"),
        (gzip.compress(member("x") + END)[:-1], "the compressed data ends early"),
        (gzip.compress(member("x") + END) + b"garbage", "incorrect header check"),
        (gzip.compress(member("x") + END) + b"\x1f\x8b", "the compressed data ends early"),
        (lzma.compress(member("x") + END)[:-1], "the compressed data ends early"),
        (lzma.compress(member("x") + END) + b"garbage" * 9, "Input format not supported"),
        (gzip.compress(b"text\n" * 999), "invalid header"),
        (b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 4 * MIB, "the compressed data ends early"),
    ],
    ids=range(9),
)
def test_damaged_compression_is_reported(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(content)
    found = unpacked(tmp_path / "a.tgz")
    assert "a.tgz: damaged or truncated" in found and said in found


def test_xz_that_needs_gigabytes_is_refused(tmp_path: Path) -> None:
    plain = lzma.compress(member("x") + END, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 24}])
    head = bytearray(plain[12:24])  # header of the first block: size, flags, filter, length, dictionary size, ..., CRC
    assert head[2:4] == b"\x21\x01"
    head[4] = 40  # 4 GiB
    head[8:12] = struct.pack("<I", zlib.crc32(head[:8]))
    (tmp_path / "a.tar.xz").write_bytes(plain[:12] + head + plain[24:])
    assert "a.tar.xz: damaged or truncated (Memory usage limit" in unpacked(tmp_path / "a.tar.xz")


# ------------------------------------------------------------------------------------------------ zip


def zipped(path: Path, items: list[tuple[zipfile.ZipInfo, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for item, content in items:
            file.writestr(item, content, item.compress_type)
    return path


def item(name: str, kind: int = 0, method: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.compress_type, made.external_attr, made.create_system = method, kind << 16, 3
    return made


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_zip_member_that_is_not_a_file_is_refused(kind: int, tmp_path: Path) -> None:
    zipped(tmp_path / "a.zip", [(item("x", kind | 0o777), b"/etc/passwd")])
    assert "a.zip: member 'x' is not a regular file" in unpacked(tmp_path / "a.zip")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_method_without_a_memory_limit_is_refused(method: int, tmp_path: Path) -> None:
    zipped(tmp_path / "a.zip", [(item("x", method=method), bytes(300 * MIB))])
    assert "a.zip: member 'x' has an unsupported compression method" in unpacked(tmp_path / "a.zip")


def test_large_list_of_zip_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.archive(tmp_path / "a.zip", {f"name{number}": "" for number in range(99)})
    monkeypatch.setattr(unpacking, "DIRECTORY_BYTES", 1000)
    assert "a list of members with 5," in unpacked(tmp_path / "a.zip")


def test_all_zip_members_count_toward_unpacked_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member is smaller than the limit, but together they exceed it."""
    monkeypatch.setattr(unpacking, "UNPACKED_BYTES", 16 * MIB)
    zipped(tmp_path / "a.zip", [(item(f"x{number}"), bytes(4 * MIB)) for number in range(9)])
    assert "a.zip: unpacks to more than" in unpacked(tmp_path / "a.zip")


@pytest.mark.parametrize("place", range(-96, -1))
def test_changed_byte_at_end_of_zip_is_harmless_or_reported(place: int, tmp_path: Path) -> None:
    mirror.archive(tmp_path / "a.zip", {"x": "one\n", "é": "two\n"})
    for value in (0, 0x7F, 0xFF):
        raw = bytearray((tmp_path / "a.zip").read_bytes())
        raw[place] = value
        (tmp_path / f"{value}.zip").write_bytes(raw)
        try:
            extract.unpack(tmp_path / f"{value}.zip", tmp_path / f"{value}")
        except ValueError as error:
            assert f"{value}.zip: " in str(error)
