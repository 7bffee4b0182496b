"""The data folder: what DATA/corpus.json says of it, and whether its files are still as they were written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..text import TextForm
from .files import sha256
from .run import Run

CORPUS = "corpus.json"


@dataclass(frozen=True)
class Corpus:
    """A data folder: binarised text, raw references in ref/, corpus.json."""

    path: Path
    name: str
    source: str
    target: str
    post_process: str | None
    tokenize: str
    form: TextForm
    differences: tuple[str, ...] = ()  # from the corpus that its name promises
    unverified: tuple[str, ...] = ()  # texts of which no checksum is known
    preparation: dict[str, Any] = field(default_factory=dict)  # the settings that it was made with

    @classmethod
    def read(cls, path: Path) -> Corpus:
        """Read DATA/corpus.json.

        Raises: OSError where there is none, ValueError naming it and what is wrong.
        """
        file = path / CORPUS
        if not path.is_dir():
            raise ValueError(f"{path}: no such data folder: name it with --data")
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
            post_process = known["restore"]["post_process"]
            form = TextForm.of_corpus(known, known["target"])
            return cls(
                path,
                known["name"],
                known["source"],
                known["target"],
                post_process,
                known["bleu_tokenize"],
                form,
                tuple(map(str, known.get("differences", []))),
                tuple(unverified(known)),
                dict(known.get("asked", {})),
            )
        except KeyError as error:
            raise ValueError(f"{file}: no {error}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}: cannot be read: {error}") from None

    def reference(self, subset: str) -> Path:
        return self.path / "ref" / f"{subset}.{self.target}"

    def inputs(self, subset: str) -> list[Path]:
        """Return the files that a translation of `subset` depends on."""
        return sorted(
            [*self.path.glob(f"{subset}.*.bin"), *self.path.glob(f"{subset}.*.idx"), *self.path.glob("dict.*")]
        )


def fingerprints(data: Path) -> dict[str, dict[str, Any]]:
    """Return what corpus.json holds to know every file of a data folder again: sizes in bytes, SHA-256 checksums."""
    files = {str(file.relative_to(data)): file for file in sorted(data.rglob("*")) if file.is_file()}
    return {
        "sizes": {name: file.stat().st_size for name, file in files.items()},
        "checksums": {name: sha256(file) for name, file in files.items()},
    }


def unverified(known: Mapping[str, Any]) -> list[str]:
    """Return the texts that no checksum vouches for, by what corpus.json says.

    Before 0.3.2 nothing was compared where text came from --raw, and the official origin was named all the same.
    """
    if "unverified" in known:
        return list(map(str, known["unverified"]))
    origins = [item.get("origin") for item in known.get("texts", {}).values()]
    return ["all texts (an earlier version did not compare them)"] if any(origins) else []


def check(data: Path, verify: bool = False) -> bool:
    """Compare the files of a data folder with corpus.json: their sizes, and with `verify` their checksums.

    Returns: whether the sizes are known. A folder that fairseq-preprocess made alone has no corpus.json, and one that a
    version before 0.3.2 made has checksums only.
    Raises: ValueError naming every file that is missing or damaged, or corpus.json where it cannot be read.
    """
    told = data / CORPUS
    if not told.is_file():
        return False
    try:
        known = json.loads(told.read_text(encoding="utf-8"))
        sizes = {str(name): int(size) for name, size in known.get("sizes", {}).items()}
        checksums = dict(known.get("checksums", {}))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{told}: cannot be read: {error}") from None
    damaged = []
    for name in dict.fromkeys([*sizes, *(checksums if verify else ())]):
        file = data / name
        if not file.is_file():
            damaged.append(f"{name} is missing")
        elif name in sizes and file.stat().st_size != sizes[name]:
            damaged.append(f"{name} has {file.stat().st_size:,} bytes, not {sizes[name]:,}")
        elif verify and name in checksums and sha256(file) != checksums[name]:
            damaged.append(f"{name} has another checksum than {CORPUS} says")
    if damaged:
        raise ValueError(f"{data}: damaged: {'; '.join(damaged)}; remove the folder and prepare it again")
    return bool(sizes)


def setting(section: Any, name: str) -> Any:
    """Return one setting of a checkpoint's cfg, whose sections are dicts or argparse namespaces."""
    return section.get(name) if isinstance(section, dict) else getattr(section, name, None)


def find_data(run: Run, state: dict[str, Any]) -> Path:
    """Return the data folder a checkpoint was trained on.

    A relative name counts from the current folder, else from where the training was started: the folder from which the
    checkpoint's --save-dir leads to this run.
    Raises: ValueError where it is not there any more.
    """
    cfg = state.get("cfg") or {}
    recorded = setting(cfg.get("task"), "data") or setting(state.get("args"), "data")
    if not recorded:
        raise ValueError(f"{run.path}: its checkpoints do not say their data folder: name it with --data")
    data = Path(str(recorded).split(":")[0])  # fairseq takes shards of a training set as A:B
    save_dir = Path(str(setting(cfg.get("checkpoint"), "save_dir")))
    here = run.path.resolve()
    candidates = [data]
    if not save_dir.is_absolute() and here.parts[-len(save_dir.parts) :] == save_dir.parts:
        candidates.append(Path(*here.parts[: -len(save_dir.parts)]) / data)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise ValueError(f"{run.path}: was trained on {data}, which is not there: name its data folder with --data")
