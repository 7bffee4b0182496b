"""data/extract.py: texts from archives and markup, and archives that are damaged or refused."""

from __future__ import annotations

import bz2
import gzip
import itertools
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_resid.data import extract, unpacking
from fairseq_resid.data.unpacking import Damaged
from support import mirror

pytestmark = pytest.mark.once


def out_of(archive: Path, members: list[str], folder: Path, limit: int | None = None) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    wanted = {name: folder / f"text{index}" for index, name in enumerate(members)}
    extract.extract(archive, wanted, limit)
    assert {path.name for path in folder.iterdir()} == {path.name for path in wanted.values()}
    return {name: path.read_bytes() for name, path in wanted.items()}


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.tar.gz", "a.tar.xz", "a.zip"])
def test_only_wanted_members_are_extracted(tmp_path: Path, name: str) -> None:
    mirror.archive(tmp_path / name, {"x/one.en": "1\n", "./x/two.en": b"2\r\n\n", "x/three.en": "3\n"})
    found = out_of(tmp_path / name, ["x/two.en", "x/one.en"], tmp_path / "out")
    assert found == {"x/one.en": b"1\n", "x/two.en": b"2\r\n\n"}


@pytest.mark.parametrize("name", ["giga.tar", "giga.tgz", "giga.zip"])
def test_compressed_members_are_unpacked(tmp_path: Path, name: str) -> None:
    text = "".join(f"line {i}\n" for i in range(50_000))
    mirror.archive(tmp_path / name, {"a.en.gz": gzip.compress(text.encode()), "a.fr.gz": gzip.compress(b"un\n")})
    found = out_of(tmp_path / name, ["a.en.gz", "a.fr.gz"], tmp_path / "out")
    assert found == {"a.en.gz": text.encode(), "a.fr.gz": b"un\n"}
    some = out_of(tmp_path / name, ["a.en.gz", "a.fr.gz"], tmp_path / "some", limit=3)
    assert some == {"a.en.gz": b"line 0\nline 1\nline 2\n", "a.fr.gz": b"un\n"}


def test_sgm_test_sets_become_plain_text(tmp_path: Path) -> None:
    text = 'A & B <c>\nTwo  "spaces" \'s\nlast\n'
    expected = b'A & B <c>\nTwo "spaces" \'s\nlast\n'
    mirror.archive(tmp_path / "test.tgz", {"t/src.sgm": mirror.sgm(text), "t/ref.xml": mirror.xml(text)})
    assert set(out_of(tmp_path / "test.tgz", ["t/src.sgm", "t/ref.xml"], tmp_path / "out").values()) == {expected}
    for broken, said in ((b"<doc>no segments</doc>", "contains no <seg>"), (b"<seg>\xff</seg>", "not UTF-8")):
        mirror.archive(tmp_path / "bad.tgz", {"t/src.sgm": broken})
        with pytest.raises(ValueError, match=rf"t/src\.sgm: {said}"):
            out_of(tmp_path / "bad.tgz", ["t/src.sgm"], tmp_path / "bad")
        assert list((tmp_path / "bad").glob("text?")) == []


def test_segments_may_span_lines_in_any_case_of_letters() -> None:
    for text, expected in (
        (b'<seg id="1">one\n  two</seg>\n<SEG ID="2">&lt;b&gt; &amp;amp;</SEG>', ["one two", "<b> &amp;"]),
        (b"<segment><seg>a</seg><seg id='2'\n>c</SEG></segment>", ["a", "c"]),
    ):
        assert extract.segments(text, "a.xml") == expected


def test_segment_without_end_gives_an_error() -> None:
    """Earlier versions dropped the sentence, so the two sides of a corpus no longer matched."""
    for text in (b"<seg>one</seg>\n<seg>two", b"<seg>one\n<seg>two</seg>"):
        with pytest.raises(ValueError, match=r"a\.xml: 1 <seg> are not closed"):
            extract.segments(text, "a.xml")


def test_segments_equal_those_of_sacrebleu(tmp_path: Path) -> None:
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    text = mirror.sides(mirror.pairs(30, ("en", "de")))[1]
    (tmp_path / "ref.sgm").write_text(mirror.sgm(text))
    FakeSGMLDataset("none", data=[])._convert_format(str(tmp_path / "ref.sgm"), str(tmp_path / "ref.txt"))
    theirs = [extract.undo_entities(line) for line in (tmp_path / "ref.txt").read_text().split("\n")[:-1]]
    assert extract.segments((tmp_path / "ref.sgm").read_bytes(), "ref.sgm") == theirs


def test_iwslt_training_text_loses_tag_lines(tmp_path: Path) -> None:
    text = "<url>http://a</url>\n One <i>word</i> .\n<title>T</title>\n\n < 5\n<speaker>S</speaker>\n"
    (tmp_path / "train.tags.en-vi.en").write_text(text)
    extract.convert(tmp_path / "train.tags.en-vi.en", "train.tags.en-vi.en", tmp_path / "out")
    assert (tmp_path / "out").read_text() == " One <i>word</i> .\n\n < 5\n"


@pytest.mark.parametrize(
    ("name", "lost"), [("a.tar", 20_000), *itertools.product(("a.tgz", "a.tar.xz", "a.zip"), (20_000, 4))]
)
def test_truncated_archive_is_reported(tmp_path: Path, name: str, lost: int) -> None:
    """Without its last four bytes, a compressed stream lacks only its end, and the archive inside is complete."""
    mirror.archive(tmp_path / name, {"a.en": mirror.sides(mirror.pairs(3000, ("en", "de")))[0]})
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-lost])
    with pytest.raises(Damaged, match=rf"{name}: damaged or truncated "):
        out_of(tmp_path / name, ["a.en"], tmp_path / "out")
    assert list((tmp_path / "out").glob("text?")) == []


def test_missing_member_is_reported(tmp_path: Path) -> None:
    mirror.archive(tmp_path / "a.tgz", {f"x/{i}": "1\n" for i in range(10)})
    with pytest.raises(ValueError, match=r"a\.tgz: member x/ten is missing; is the file complete\?"):
        out_of(tmp_path / "a.tgz", ["x/0", "x/ten"], tmp_path / "out")


@pytest.mark.parametrize("name", ["a.tgz", "a.tar.xz", "a.zip"])
def test_extract_all_keeps_every_file_unchanged(tmp_path: Path, name: str) -> None:
    members: dict[str, str | bytes] = {"x/y/one.gz": b"\x1f\x8bno gzip", "./two.xml": "<seg>text", "x/three": ""}
    mirror.archive(tmp_path / name, dict(members))
    extract.unpack(tmp_path / name, tmp_path / "out")
    found = {file: (tmp_path / "out" / file).read_bytes() for file in members}
    assert found == {file: data if isinstance(data, bytes) else data.encode() for file, data in members.items()}
    assert len([file for file in (tmp_path / "out").rglob("*") if file.is_file()]) == 3


# ------------------------------------------------------------------------------------------------ damage

TEXTS = dict(zip(("a.en", "a.de"), mirror.sides(mirror.pairs(40, ("en", "de"))), strict=True))
PACKED = {f"{name}.gz": gzip.compress(text.encode(), mtime=0) for name, text in TEXTS.items()}


@pytest.mark.parametrize("name", ["a.tgz", "a.tar.xz", "nested.tar"])
def test_flipped_bit_is_harmless_or_detected(tmp_path: Path, name: str) -> None:
    members: dict[str, str | bytes] = dict(PACKED if name.startswith("nested") else TEXTS)
    mirror.archive(tmp_path / name, members)
    whole = (tmp_path / name).read_bytes()
    expected = [text.encode() for text in TEXTS.values()]
    found = 0
    # The last 8 bytes of a gzip file are its checksum and length.
    for place in [*range(0, len(whole), 40), *range(len(whole) - 40, len(whole), 3)]:
        raw = bytearray(whole)
        raw[place] ^= 1 << place % 8
        (tmp_path / name).write_bytes(raw)
        try:
            out_of(tmp_path / name, list(members), tmp_path / "out")
        except ValueError as error:
            assert str(tmp_path / name) in str(error)
            assert not list((tmp_path / "out").glob("text?"))
            found += 1
        else:
            assert [(tmp_path / "out" / f"text{index}").read_bytes() for index in (0, 1)] == expected
            shutil.rmtree(tmp_path / "out")
    assert found > 10


def test_damaged_header_is_not_the_end_of_the_archive(tmp_path: Path) -> None:
    """`tarfile` itself would stop at the first damaged header but the first without an error."""
    mirror.archive(tmp_path / "a.tar", {"x": "one\n", "y": "two\n", "z": "three\n"})
    raw = bytearray((tmp_path / "a.tar").read_bytes())
    raw[1024 + 148] ^= 1  # the checksum of the second header
    (tmp_path / "a.tar").write_bytes(raw)
    with pytest.raises(Damaged, match=r"a\.tar: damaged or truncated \(bad checksum\)"):
        extract.unpack(tmp_path / "a.tar", tmp_path / "out")


@pytest.mark.parametrize(
    "repack",
    [
        lambda tar: gzip.compress(tar + bytes(30_000)),
        lambda tar: gzip.compress(tar[:5000]) + gzip.compress(tar[5000:]),
        lambda tar: bz2.compress(tar),
    ],
)
def test_repacked_archive_is_accepted(tmp_path: Path, repack: Callable[[bytes], bytes]) -> None:
    mirror.archive(tmp_path / "a.tar", dict(TEXTS))
    (tmp_path / "a.tgz").write_bytes(repack((tmp_path / "a.tar").read_bytes()))
    found = out_of(tmp_path / "a.tgz", list(TEXTS), tmp_path / "out")
    assert found == {name: text.encode() for name, text in TEXTS.items()}


def test_limit_stops_reading_the_archive(tmp_path: Path) -> None:
    mirror.archive(tmp_path / "a.tgz", {**TEXTS, "other": "\n".join(map(str, range(50_000)))})
    (tmp_path / "a.tgz").write_bytes((tmp_path / "a.tgz").read_bytes()[:-1000])
    assert out_of(tmp_path / "a.tgz", list(TEXTS), tmp_path / "some", limit=2).keys() == TEXTS.keys()
    with pytest.raises(Damaged):
        out_of(tmp_path / "a.tgz", list(TEXTS), tmp_path / "all")


def test_damaged_compressed_text_is_reported(tmp_path: Path) -> None:
    packed = bytearray(PACKED["a.en.gz"])
    packed[-6] ^= 1  # in its checksum
    for raw in (bytes(packed), PACKED["a.en.gz"][:-4]):
        (tmp_path / "a.en.gz").write_bytes(raw)
        with pytest.raises(Damaged, match=r"a\.en\.gz: damaged or truncated"):
            extract.convert(tmp_path / "a.en.gz", "a.en.gz", tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a.tgz", "a.zip", "nested.tar"])
def test_archive_that_unpacks_to_too_much_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = bytes(20_000_000)
    member = "a.en.gz" if name == "nested.tar" else "a.en"
    mirror.archive(tmp_path / name, {member: gzip.compress(zeros) if name == "nested.tar" else zeros})
    assert out_of(tmp_path / name, [member], tmp_path / "out") == {member: zeros}
    monkeypatch.setattr(unpacking, "UNPACKED_BYTES", 1 << 20)
    with pytest.raises(ValueError, match=rf"{name}: unpacks to over .* --raw"):
        out_of(tmp_path / name, [member], tmp_path / "none")
    assert list((tmp_path / "none").iterdir()) == []


@pytest.mark.parametrize("name, kind", [("../evil", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)])
def test_only_regular_files_below_the_folder_are_unpacked(tmp_path: Path, name: str, kind: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "../outside"
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as file:
        file.addfile(member)
    with pytest.raises(ValueError, match=rf"a\.tgz: member '{name}' "):
        extract.unpack(tmp_path / "a.tgz", tmp_path / "all")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.tgz"]
