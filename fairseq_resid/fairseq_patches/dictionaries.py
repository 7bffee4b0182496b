"""Refuse data whose dictionaries are not those of a checkpoint.

fairseq compares only shapes: with another dictionary of the same size, every word would get the embedding of another
one. Checkpoints therefore contain the SHA-256 of the symbols of both dictionaries, in their order and without counts
(extra_state["dictionaries"]). For checkpoints that do not, such as those of earlier versions and of fairseq itself, the
dictionaries are read from the data folder in their config, if it still exists.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .errors import UserError
from .patching import wrap

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
STORED = "dictionaries"  # in a checkpoint's extra_state
KNOWN = "known_dictionaries"  # in a checkpoint's state while it is in memory: the result of `known`
FLAG = "--allow-other-dictionary"
# An environment variable, because the processes that a command starts load checkpoints too.
ALLOWED = "FAIRSEQ_RESID_ALLOW_OTHER_DICTIONARY"
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the symbols that fairseq adds before those in the file
COUNT = re.compile(r" [^ ]*( #fairseq:overwrite)?$")  # what follows the symbol in a line of the file
PAIR = re.compile(r"[^.]+\.(?P<source>.+)-(?P<target>.+)\.((?P=source)|(?P=target))(\.(bin|idx))?")


@dataclass(frozen=True)
class Words:
    """A dictionary of a task or data folder: its file, if it is known, and its symbols, special ones included."""

    file: Path | None
    symbols: list[str]


def setting(section: Any, name: str) -> Any:
    """Return a setting from a section of a checkpoint's cfg, which is a dict or an argparse namespace."""
    return section.get(name) if isinstance(section, dict) else getattr(section, name, None)


def language_pair(folder: str | os.PathLike[str]) -> tuple[str | None, str | None]:
    """Return the languages of a data folder from the name of a file, SPLIT.SRC-TGT.LANG; None if there is no such file.

    The codes may contain hyphens, because LANG is one of them: in train.en-pt-BR.en.idx, the other one is pt-BR.
    """
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    match = next(filter(None, map(PAIR.fullmatch, names)), None)
    return (match["source"], match["target"]) if match else (None, None)


def data_folders(state: dict[str, Any], folder: Path) -> list[Path]:
    """Return the paths where the data folder that a checkpoint was trained on may be; an empty list if it names none.

    A relative path leads from the current folder or from the folder in which training was started, that is, the folder
    from which the checkpoint's --save-dir leads to `folder`, which contains the checkpoint.
    """
    cfg = state.get("cfg") or {}
    recorded = setting(cfg.get("task"), "data") or setting(state.get("args"), "data")
    if not recorded:
        return []
    data = Path(str(recorded).split(":")[0])  # fairseq accepts shards of a training set as A:B
    save_dir = Path(str(setting(cfg.get("checkpoint"), "save_dir")))
    here = folder.resolve()
    if save_dir.is_absolute() or here.parts[-len(save_dir.parts) :] != save_dir.parts:
        return [data]
    return [data, Path(*here.parts[: -len(save_dir.parts)]) / data]


def _file(task: Any, side: str, folder: Path) -> Path | None:
    """Return the path of a dictionary in a data folder: of the task's language, or else as fairseq infers it.

    None if the folder has neither a language pair nor only one dictionary.
    """
    if language := setting(task, f"{side}_lang") or language_pair(folder)[SIDES.index(side)]:
        return folder / f"dict.{language}.txt"
    found = list(folder.glob("dict*.txt"))
    return found[0] if len(found) == 1 else None


def _task_config(state: dict[str, Any]) -> Any:
    return (state.get("cfg") or {}).get("task") or state.get("args")


def known(state: dict[str, Any], path: str | os.PathLike[str]) -> dict[str, dict[str, str]]:
    """Return the SHA-256 and the file (or folder) of each dictionary of a checkpoint, "" if it is not recorded."""
    if KNOWN in state:
        found: dict[str, dict[str, str]] = state[KNOWN]
        return found
    stored = (state.get("extra_state") or {}).get(STORED) or {}
    found = {}
    for side in SIDES:
        folders = data_folders(state, Path(path).parent)
        files = [_file(_task_config(state), side, folder) or folder for folder in folders]
        file = next(filter(Path.is_file, files), files[0] if files else "")
        found[side] = {"sha256": str(stored.get(side) or ""), "file": str(file)}
    return found


def languages(state: dict[str, Any], path: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Return source and target language of a checkpoint, from the files of its dictionaries; None if not known."""
    names = [re.fullmatch(r"dict\.(.+)\.txt", Path(each["file"]).name) for each in known(state, path).values()]
    source, target = (name[1] if name else "" for name in names)
    return (source, target) if source and target else None


def sha256(symbols: list[str]) -> str:
    """Return the SHA-256 of symbols, one per line."""
    return hashlib.sha256("".join(f"{symbol}\n" for symbol in symbols).encode()).hexdigest()


def read(file: str | os.PathLike[str]) -> list[str]:
    """Return the symbols of a dictionary file, as fairseq's Dictionary.load does; averaging works without fairseq."""
    with open(file, encoding="utf-8") as lines:
        return [*SPECIAL, *(COUNT.sub("", line.rstrip()) for line in lines)]


def of_task(task: Any) -> dict[str, Words]:
    """Return the dictionaries of a fairseq task.

    A task with several language pairs has none: its properties return those of the pair that is translated.
    """
    found: dict[str, Words] = {}
    if hasattr(task, "dicts") or hasattr(task, "data_manager"):
        return found
    config = getattr(task, "cfg", None) or getattr(task, "args", None)
    folder = setting(config, "data")
    for side in SIDES:
        with contextlib.suppress(NotImplementedError):  # fairseq 0.12.2, for a task without dictionaries
            symbols = getattr(getattr(task, f"{side}_dictionary"), "symbols", None)
            if symbols is not None:
                file = _file(config, side, Path(str(folder).split(":")[0])) if folder else None
                found[side] = Words(file, list(symbols))
    return found


def of_folder(state: dict[str, Any], data: Path) -> dict[str, Words]:
    """Return the dictionaries of a data folder in the languages of a checkpoint."""
    files = {side: _file(_task_config(state), side, data) for side in SIDES}
    return {side: Words(file, read(file)) for side, file in files.items() if file is not None}


def identified(state: dict[str, Any], path: str | os.PathLike[str]) -> dict[str, dict[str, str]]:
    """Return `known` with a SHA-256 for every dictionary whose file exists."""
    return {
        side: {**one, "sha256": one["sha256"] or (sha256(read(one["file"])) if Path(one["file"]).is_file() else "")}
        for side, one in known(state, path).items()
    }


def first_difference(own: list[str], theirs: list[str]) -> str:
    """Return the first line in which two dictionaries differ; fairseq's special symbols are not in their files."""
    for number, pair in enumerate(zip_longest(own, theirs)):
        if pair[0] != pair[1]:
            mine, other = ("nothing" if word is None else repr(word[:40]) for word in pair)
            return f"its line {number - 3:,} has {mine} instead of {other}"
    return ""


def difference(their: Mapping[str, str], own: Words) -> str | None:
    """Return how a dictionary differs from that of a checkpoint: "" if it is the same, None if that is unknown.

    their: the SHA-256 and the file of the checkpoint's dictionary
    """
    file, expected, found = Path(their["file"]), their["sha256"], sha256(own.symbols)
    if expected == found:
        return ""
    theirs = read(file) if file.is_file() else None
    if not expected:  # some tasks add symbols to those in their file, so the files are compared
        return None if own.file is None or theirs is None else first_difference(read(own.file), theirs)
    if theirs is not None and sha256(theirs) == expected:
        return first_difference(own.symbols, theirs)
    return f"its SHA-256 begins with {found[:12]}, not {expected[:12]}"


def check(path: str | os.PathLike[str], state: dict[str, Any], own: Mapping[str, Words]) -> None:
    """Refuse a checkpoint whose dictionaries are not these.

    Raises: UserError naming the checkpoint, both dictionaries and the first difference, unless it is allowed.
    """
    theirs = known(state, path)
    for side, words in own.items():
        file = theirs[side]["file"]
        found = difference(theirs[side], words)
        if found is None:
            _say_unknown(str(path), file, str(words.file))
            return
        if not found:
            continue
        mine = words.file or "the dictionary of the task"
        message = f"{path}: trained with {file}, but {mine} is another dictionary: {found}"
        if not is_allowed():
            raise UserError(
                f"{message}; make the data with the model's dictionary (fairseq-resid prepare custom --vocab-from), or "
                f"give {FLAG} if equal entries have the same meaning"
            )
        logger.warning("%s; accepted because of %s", message, FLAG)


@functools.cache  # one line for each checkpoint
def _say_unknown(path: str, recorded: str, own: str) -> None:
    known_as = f"; it was trained on {recorded}, which does not exist here" if recorded else ""
    logger.warning("%s: its dictionary is unknown and was not compared with %s%s", path, own, known_as)


def is_allowed() -> bool:
    return os.environ.get(ALLOWED) == "1"


@contextlib.contextmanager
def allowing(is_on: bool) -> Iterator[None]:
    """Accept other dictionaries in this block and in the processes that it starts, if `is_on` is true."""
    before = os.environ.get(ALLOWED, "")
    os.environ[ALLOWED] = "1" if is_on else before
    try:
        yield
    finally:
        os.environ[ALLOWED] = before


class _Allow(argparse.Action):
    def __call__(self, *_: Any) -> None:
        os.environ[ALLOWED] = "1"


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Add --allow-other-dictionary to a command; it holds until the process ends."""
    parser.add_argument(
        FLAG,
        action=_Allow,
        nargs=0,
        # The flag has no value in the namespace, because checkpoints contain all values of fairseq's flags.
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="accept a dictionary that differs from the checkpoint's but has the same size: each entry has the "
        "embedding of the entry in the same place of the checkpoint's dictionary",
    )


def remember_dictionaries() -> None:
    """Save the SHA-256 of both dictionaries in every checkpoint."""
    from fairseq.trainer import Trainer

    @wrap(Trainer)
    def save_checkpoint(original, self, filename, extra_state):
        found = {side: sha256(words.symbols) for side, words in of_task(self.task).items()}
        return original(self, filename, {**extra_state, STORED: found})
