"""From raw text to the text that sentencepiece sees. Training pairs that cannot be used are dropped, or an error."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ..folders.data import PairCounts
from ..text import TextForm
from . import clean, stream

PROBLEMS = {
    "not_utf8": "not UTF-8",
    "control_characters": "holds a NUL byte",
    "too_long": f"a line of more than {clean.MAX_CHARACTERS:,} characters",
}


class Tokenise:
    """The work on one chunk, as an object that can be sent to a worker process."""

    def __init__(self, forms: tuple[TextForm, TextForm], cleaned: bool) -> None:
        self.forms = forms
        self.cleaned = cleaned

    def __call__(self, chunk: stream.Chunk) -> stream.Result:
        counts: Counter[str] = Counter()
        outputs: tuple[list[str], list[str]] = ([], [])
        for offset, raw in enumerate(zip(*chunk.sides, strict=True)):
            counts["in"] += 1
            decoded = [clean.decode(line) for line in raw]
            reason = next((reason for _, reason in decoded if reason), None)
            if reason and not self.cleaned:
                side = 0 if decoded[0][1] else 1
                raise ValueError(
                    f"{chunk.files[side]}:{chunk.first + offset}: {PROBLEMS[reason]}; --clean drops such pairs"
                )
            pair = (decoded[0][0], decoded[1][0])
            reason = reason or (clean.raw_reason(*pair) if self.cleaned else None)
            if not reason:
                # sentencepiece takes the control characters that are left for spaces. A line must stay one line.
                pair = (self.forms[0].to_model(pair[0]), self.forms[1].to_model(pair[1]))
                reason = clean.text_reason(*pair) if self.cleaned else None
            if reason:
                counts[reason] += 1
                continue
            counts["out"] += 1
            for output, line in zip(outputs, pair, strict=True):
                output.append(line.replace("\n", " ") + "\n")
        return stream.Result(("".join(outputs[0]).encode(), "".join(outputs[1]).encode()), counts)


def tokenise(
    what: str,
    pairs: list[tuple[Path, Path]],
    outputs: tuple[Path, Path],
    forms: tuple[TextForm, TextForm],
    cleaned: bool,
    workers: int,
    total: int | None,
) -> PairCounts:
    """Write one or more parallel texts, one after the other, as sentencepiece shall see them.

    Raises: ValueError naming file and line of text that cannot be used, if cleaning is off.
    """
    counts = stream.transform(what, pairs, outputs, Tokenise(forms, cleaned), workers, total)
    reasons = clean.RAW_REASONS if cleaned else ()
    return PairCounts(counts["in"], counts["out"], {reason: counts[reason] for reason in reasons})
