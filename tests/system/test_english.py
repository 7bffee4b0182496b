"""Phrases that read like a translation: an alarm for all texts in the tree, not a measure of their quality."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".py", ".md", ".sh", ".txt", ".yaml", ".yml", ".toml")
CHANGELOG_VERSIONS = 3  # the newest ones; older entries are not rewritten

# (pattern, a sentence that it finds, what to write instead). A space matches a line break too.
PATTERNS = [
    (r"that there (is|are) not\b", "2 for a command that there is not", "does not exist, is missing"),
    (r"what (is|was) asked\b", "What is asked when runs are known", "the option, request or question by its name"),
    (r"stay(s|ed|ing)? behind\b", "it is `post_ln` that stays behind", "is slower, is worse, lags"),
    (
        r"behind (this|that|the|its|an?|each|every|so many) (update|epoch|batch|step|checkpoint|stop|run)s?\b",
        "stopping behind this update",
        "after",
    ),
    (r"of whom\b", "models, of whom two are deep", "of which"),
    (r"is called so\b", "a structure that is called so", "has this name"),
    (r"who(ever)? asks\b", "Who asks whether a folder is among them", "name the caller"),
    (r"whoever\b", "one line, whoever reads it", "anyone who, or name the reader"),
    (r"as it stands\b", "runs as it stands", "unchanged"),
    (r"what there is\b", "plots of what there is", "name it: the available runs, the existing files"),
    (r"whose (shape|value|type|name|size) is none\b", "a tensor whose shape is none", "invalid shape"),
    (
        r"(?<!there )\b(is|are) no (number|integer|tensor|list|literal|text|file|folder|checkpoint|data|UTF-8)\b",
        "a line that is no UTF-8",
        "is not (a)",
    ),
    (r"no multiple of\b", "a size that is no multiple of 8", "not a multiple of"),
    (r"(is|are) taken for(?! granted)\b", "SIGTERM is taken for a second Ctrl-C", "is treated as, is mistaken for"),
    (r"dealt (?!with\b)", "is dealt into other batches", "split, distributed"),
    (r"go(es)? on (on|where|behind|under)\b", "it goes on where it was stopped", "continues, resumes"),
    (r"same command goes on\b", "the same command goes on", "run the same command again to resume"),
    (r"without a word\b", "drops it without a word", "silently"),
    (r"(is|are) told\b", "failed: is told of a plot", "receives, is given, is called with"),
    (r"to be had\b", "where it is to be had", "available"),
    (r"(thousands|words) parted\b|parted (by|at|so)\b", "numbers parted by tabs", "separated, divided, split"),
    (r"stands? (under|beside|behind)\b", "what stands under this alone", "is in, is next to, or say what it means"),
    (r"anew\b", "weights are drawn anew", "again, from scratch"),
    (r"says? of (it|itself|them|an?|the)\b", "what a record says of a run", "reports about, contains"),
    (r"in the one and\b", "tiny in the one and huge in the other", "name both"),
    (r"(update|machine|data) at hand\b", "saves after the update at hand", "current, this"),
    (r"that which\b", "that which was saved", "name the thing"),
    (r"as of old\b", "named as of old", "as in earlier versions"),
    (
        r"trainings\b(?! (=|and|import) |\))",
        "two trainings in one folder",
        "training runs, or the verb: train, training",
    ),
    (
        r"(a|each|every|this|another|finished|resumed) training"
        r"(?=[.,;:]| (that|which|has|is|was|of|on|with|by|if|in|from|and saves|ends|starts|writes|keeps|uses|fails)\b)",
        "a training that diverges",
        "a training run, or the verb: training, to train",
    ),
    (r"start values?\b", "the start value of w", "initial value"),
    (r"stock's\b", "stock's encoder layer", "fairseq's, of stock fairseq"),
    (r"(valid and|valid or) test (sets?|sentences|texts?|pairs?)\b", "the valid and test sets", "validation and test"),
    (
        r"(two|three|four|five) \w+ (out )?of (three|four|five|six)\b",
        "in three settings of four",
        "three of four settings",
    ),
]


def find(pattern: str, text: str) -> list[tuple[int, str]]:
    """Return (line, phrase) for every match in a text, including phrases that continue on the next line."""
    flat = re.sub(r"[ \t]*\n[ \t]*(?:#+|>)?[ \t]*", "\n", text)
    spaced = re.compile(r"(?<![\w-])(?:" + pattern.replace(" ", r"[ \n]") + ")", re.IGNORECASE)
    return [(flat.count("\n", 0, match.start()) + 1, " ".join(match[0].split())) for match in spaced.finditer(flat)]


def texts() -> dict[str, str]:
    """Return the tracked text files by path, without this one and without old versions in the changelog."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs a git checkout")
    found = {}
    for name in listed.stdout.splitlines():
        file = ROOT / name
        is_text = name.endswith(SUFFIXES) or name == ".ci/run"
        if is_text and file.is_file() and not file.is_symlink() and file != Path(__file__).resolve():
            text = file.read_text(encoding="utf-8")
            if name == "CHANGELOG.md":
                text = "\n## ".join(text.split("\n## ")[: CHANGELOG_VERSIONS + 1])
            found[name] = text
    return found


@pytest.mark.parametrize(("pattern", "sentence", "better"), PATTERNS, ids=[sentence for _, sentence, _ in PATTERNS])
def test_pattern_finds_its_example_across_lines(pattern: str, sentence: str, better: str) -> None:
    assert find(pattern, sentence) and better
    words = sentence.split(" ")
    for cut in range(1, len(words)):
        assert find(pattern, "    # " + " ".join(words[:cut]) + "\n    # " + " ".join(words[cut:]))
    assert not find(pattern, "There is no data folder: run the command again, and it resumes after the last update.")


def test_no_text_uses_these_phrases() -> None:
    found = [
        f"{name}:{line}: {phrase!r}; write instead: {better}"
        for name, text in texts().items()
        for pattern, _, better in PATTERNS
        for line, phrase in find(pattern, text)
    ]
    assert not found, f"{len(found)} phrases to rewrite:\n" + "\n".join(found)
