"""A mirror of WMT'14, IWSLT'15 and CIFAR: the official archive names, members and formats, with made-up data."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tarfile
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image

TEXT = {
    "en": "the house is small , and we see it every day in a very large city near river with our old friends",
    "de": "das Haus ist klein und wir sehen es jeden Tag in einer sehr großen Stadt am Fluss mit alten Freunden",
    "fr": "la maison est petite et nous la voyons tous les jours dans une très grande ville près du fleuve",
    "vi": "ngôi nhà nhỏ và chúng tôi nhìn thấy nó mỗi ngày ở một thành phố rất lớn gần sông với bạn cũ",
}
WORDS = {language: text.split() for language, text in TEXT.items()}


def sentence(choose: random.Random, language: str, length: int) -> str:
    """Return a random capitalised sentence, sometimes with quotes or a number."""
    words = [choose.choice(WORDS[language]) for _ in range(length)]
    if choose.random() < 0.2:
        words[0] = f"“{words[0]}”" if choose.random() < 0.5 else f'"{words[0]}"'
    if choose.random() < 0.2:
        words.append(str(choose.randint(1, 2000)))
    text = " ".join(words).replace(" ,", ",")
    return text[:1].upper() + text[1:] + choose.choice([".", "?", "!", "..."])


def pairs(count: int, languages: tuple[str, str], seed: int = 1) -> list[tuple[str, str]]:
    """Return random sentence pairs whose sides have similar lengths."""
    choose = random.Random(f"{languages} {seed}")
    lengths = [choose.randint(4, 14) for _ in range(count)]
    return [(sentence(choose, languages[0], n), sentence(choose, languages[1], n)) for n in lengths]


def sides(items: list[tuple[str, str]]) -> tuple[str, str]:
    """Return the two sides of sentence pairs as two texts."""
    return "".join(left + "\n" for left, _ in items), "".join(right + "\n" for _, right in items)


def sgm(text: str, kind: str = "refset") -> str:
    """Return a text in the markup of WMT's test sets."""
    segments = "".join(f'<seg id="{i}">{escape(line)}</seg>\n' for i, line in enumerate(text.splitlines(), start=1))
    return f'<{kind} setid="newstest2014" srclang="any">\n<doc docid="d1">\n<p>\n{segments}</p>\n</doc>\n</{kind}>\n'


def xml(text: str) -> str:
    """Return a text in the markup of IWSLT's test sets."""
    segments = "".join(f'<seg id="{i}"> {escape(line)}  </seg>\n' for i, line in enumerate(text.splitlines(), start=1))
    head = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<refset setid="s">\n<doc docid="1">\n<url>http://a/</url>\n'
    )
    return f"{head}<title>A title</title>\n{segments}</doc>\n</refset>\n</mteval>\n"


def archive(path: Path, members: dict[str, str | bytes]) -> None:
    """Write a tar or zip archive, compressed according to its name, with the same bytes in every call."""
    content = io.BytesIO()
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, data in members.items():
                packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        path.write_bytes(content.getvalue())
        return
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data in members.items():
            raw = data.encode() if isinstance(data, str) else data
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    raw = content.getvalue()
    if path.name.endswith("gz"):
        raw = gzip.compress(raw, mtime=0)
    elif path.name.endswith(".xz"):
        raw = lzma.compress(raw)
    path.write_bytes(raw)


def wmt14(folder: Path, target: str, train: int = 120, evaluation: int = 20) -> Path:
    """Write the archives of WMT'14 EN-DE or EN-FR, with members of other languages, like the real ones."""
    folder.mkdir(parents=True, exist_ok=True)
    pair, languages = f"{target}-en", ("en", target)

    def both(stem: str, count: int, seed: int) -> dict[str, str | bytes]:
        left, right = sides(pairs(count, languages, seed))
        return {f"{stem}.{target}": right, f"{stem}.en": left}

    other = {"training/europarl-v7.cs-en.cs": "jiný\n", "training/europarl-v7.cs-en.en": "other\n"}
    archive(folder / "training-parallel-europarl-v7.tgz", {**other, **both(f"training/europarl-v7.{pair}", train, 1)})
    archive(folder / "training-parallel-commoncrawl.tgz", both(f"commoncrawl.{pair}", train, 2))
    archive(folder / "training-parallel-nc-v9.tgz", both(f"training/news-commentary-v9.{pair}", train // 2, 3))
    if target == "fr":
        archive(folder / "training-parallel-un.tgz", both(f"un/undoc.2000.{pair}", train, 4))
        giga = both("giga-fren.release2.fixed", train, 5)
        packed = {f"{name}.gz": gzip.compress(str(text).encode(), mtime=0) for name, text in giga.items()}
        archive(folder / "training-giga-fren.tar", packed)
    archive(folder / "dev.tgz", {**both("dev/newstest2012", evaluation, 6), **both("dev/newstest2013", evaluation, 7)})
    left, right = sides(pairs(evaluation, languages, 8))
    stem = f"test-full/newstest2014-{target}en" if target == "de" else "test-full/newstest2014-fren"
    archive(folder / "test-full.tgz", {f"{stem}-src.en.sgm": sgm(left), f"{stem}-ref.{target}.sgm": sgm(right)})
    return folder


def iwslt15(folder: Path, form: str, train: int = 200, evaluation: int = 25) -> Path:
    """Write IWSLT'15 EN-VI in one of its forms: "stanford", "plain" or "xml"."""
    from fairseq_resid.data.text.forms import TextForm
    from fairseq_resid.data.text.forms import escape as moses_escape

    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate({"train": train, "tst2012": evaluation, "tst2013": evaluation}.items()):
        for language, text in zip(("en", "vi"), sides(pairs(count, ("en", "vi"), seed)), strict=True):
            if form == "stanford":
                moses = TextForm(language, "moses")
                lines = [moses_escape(moses.to_model(line)) for line in text.splitlines()]
                (folder / f"{name}.{language}").write_text("".join(line + "\n" for line in lines))
            elif form == "plain":
                (folder / f"{name}.{language}").write_text(text)
            elif name == "train":
                tags = "<url>http://www.ted.com/talks/a</url>\n<title>A title</title>\n"
                (folder / f"train.tags.en-vi.{language}").write_text(tags + text + tags)
            else:
                (folder / f"IWSLT15.TED.{name}.en-vi.{language}.xml").write_text(xml(text))
    return folder


def pixels(count: int, seed: int) -> np.ndarray:
    """Return random images (count, 3, 32, 32) whose channels differ in brightness."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, [[[100]], [[200]], [[256]]], (count, 3, 32, 32)).astype(np.uint8)


def cifar_members(name: str, train: int = 30, test: int = 10) -> dict[str, str | bytes]:
    """Return the members of a CIFAR release, with random images and labels that cycle through the classes."""
    from fairseq_resid.data.images import manifest

    known = manifest.read(name)
    listed = "".join(f"{label}\n" for label in known.classes) + "\n"
    found: dict[str, str | bytes] = {known.names: listed, f"{Path(known.names).parent}/readme.html": "<p>"}
    for count, names in ((train, known.members["train"]), (test, known.members["test"])):
        each = count // len(names)
        for number, member in enumerate(names):
            labels = [(index * 7 + number) % len(known.classes) for index in range(each)]
            before = [bytes([label % 20, label]) if name == "cifar100" else bytes([label]) for label in labels]
            images = zip(before, pixels(each, count + number), strict=True)
            found[member] = b"".join(label + image.tobytes() for label, image in images)
    return found


def cifar(folder: Path, name: str, members: dict[str, str | bytes]) -> Path:
    """Write the archive of a release of CIFAR."""
    from fairseq_resid.data.images import manifest

    folder.mkdir(parents=True, exist_ok=True)
    file = manifest.read(name).file
    assert file is not None
    archive(folder / file.name, members)
    return folder / file.name


def images(folder: Path, classes: tuple[str, ...], train: int = 5, test: int = 2) -> Path:
    """Write made-up images as PNG files in one folder for each class."""
    for part, count in (("train", train), ("test", test)):
        for number, label in enumerate(classes):
            (folder / part / label).mkdir(parents=True)
            for index, image in enumerate(pixels(count, 100 * number + len(part))):
                Image.fromarray(image.transpose(1, 2, 0)).save(folder / part / label / f"{index:04}.png")
    return folder
