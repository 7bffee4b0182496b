"""Fixtures for the tests of data preparation."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fairseq_resid.data.text import manifest as manifests
from fairseq_resid.data.text import prepare
from support import mirror
from support.preparing import Released, main
from support.web_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Released:
    """Return a mirror of WMT'14 EN-DE whose checksums are in the manifest, and a function that prepares it."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**13, 0, 10**13))
    host = mirror.wmt14(tmp_path / "host", "de")
    known = yaml.safe_load((manifests.MANIFESTS / "wmt14-en-de.yaml").read_text())
    for name, item in known["files"].items():
        item.pop("bytes", None)
        item.pop("sha256", None)
        if (host / name).is_file():
            item["md5"] = hashlib.md5((host / name).read_bytes()).hexdigest()
    for split, counts in {"train": [120, 120, 60], "valid": [20], "test": [20]}.items():
        for part, lines in zip(known["parts"][split], counts, strict=True):
            part["lines"] = lines
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "wmt14-en-de.yaml").write_text(yaml.safe_dump(known))
    monkeypatch.setattr(manifests, "MANIFESTS", tmp_path / "manifests")

    def prepare_released(out: str, *flags: object) -> int:
        given = ["--out", tmp_path / out, "--downloads", tmp_path / "dl", "--vocab-size", 250, "--workers", 1]
        return prepare.main(["wmt14-en-de", *map(str, [*given, *flags])])

    return host, prepare_released


@pytest.fixture
def raw(raw_text: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Return a copy of the tiny corpus that tests may change; its target text has an accent in every line."""
    folder = tmp_path / "raw"
    shutil.copytree(raw_text["train"].parent, folder)
    for split in raw_text:
        file = folder / f"{split}.xx"
        file.write_text(file.read_text().replace("o", "ộ"), encoding="utf-8")
    return {split: folder / split for split in raw_text}


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return mirrors of both WMT'14 corpora; tests must not change them."""
    folder = tmp_path_factory.mktemp("hosts")
    return {target: mirror.wmt14(folder / target, target) for target in ("de", "fr")}


@pytest.fixture(scope="session")
def en_de(hosts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return WMT'14 EN-DE, prepared from its mirror; tests must not change it."""
    out = tmp_path_factory.mktemp("en-de") / "data"
    assert main("wmt14-en-de", out, "--mirror", hosts["de"].as_uri()) == 0
    return out
