"""Caption scores from pycocoevalcap, the tools of the COCO caption challenge, with the CIDEr of each image.

Captions and references are tokenised by the Penn Treebank tokeniser of these tools, which needs Java. METEOR needs Java
too. SPICE needs language models, which pycocoevalcap would download; it is computed only if these models are already
installed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ..cli.frame import MissingPackage
from .rows import Row

CIDER = "CIDEr"
INSTALL = 'run pip install ".[fairseq,captioning]"'


@dataclass(frozen=True)
class CaptionScore(Row):
    """The score of an image's caption, and the number of references. cider: 100 times CIDEr-D."""

    digits = 6
    image: str
    cider: float
    references: int


@dataclass(frozen=True)
class Scores:
    """Corpus scores by name and CIDEr by image, all times 100, and the reason for every score that was not computed."""

    values: dict[str, float]
    cider: list[float]
    absent: dict[str, str]


def signature(references: Sequence[Sequence[str]]) -> str:
    counts = sorted({len(each) for each in references})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
    return f"nrefs:{number}|tok:ptb|case:lc|pycocoevalcap:{metadata.version('pycocoevalcap')}"


def folder() -> Path:
    """Return the folder of pycocoevalcap.

    Raises: MissingPackage if it or Java is missing.
    """
    found = find_spec("pycocoevalcap")
    if found is None or not found.submodule_search_locations:
        raise MissingPackage(f"scores of captions: pycocoevalcap is not installed; {INSTALL}")
    if shutil.which("java") is None:
        raise MissingPackage("scores of captions: java: not found; install a Java runtime, version 8 or later")
    return Path(next(iter(found.submodule_search_locations)))


def tokenise(lines: Sequence[str]) -> list[str]:
    """Return lines in lower case, tokenised and without punctuation, as pycocoevalcap scores them.

    Raises: ChildProcessError if the tokeniser fails.
    """
    (jar,) = sorted((folder() / "tokenizer").glob("stanford-corenlp-*.jar"))[:1]
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

    # We do not use pycocoevalcap's PTBTokenizer, because it writes a file into the folder of the package.
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    text = "".join(f"{' '.join(line.split())}\n" for line in lines)
    done = subprocess.run([*command, "-preserveLines", "-lowerCase"], input=text.encode(), capture_output=True)
    found = done.stdout.decode("utf-8", "replace").split("\n")
    if done.returncode or len(found) != len(lines) + 1:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"{len(found) - 1:,} lines"]
        raise ChildProcessError(f"tokeniser of pycocoevalcap failed for {len(lines):,} captions: {reason[0]}")
    return [" ".join(word for word in line.split() if word not in PUNCTUATIONS) for line in found[:-1]]


def score(outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> list[Scores]:
    """Score the outputs of one or more models, one caption per image, with every measure that can be computed here.

    The models share the processes of the tokeniser and of METEOR, which take seconds to start.
    Raises: MissingPackage if pycocoevalcap or Java is missing; ChildProcessError if the tokeniser fails.
    """
    installed = folder()
    tokens = iter(tokenise([text for texts in (*references, *outputs) for text in texts]))
    expected = {image: [next(tokens) for _ in texts] for image, texts in enumerate(references)}
    hypotheses = [{image: [next(tokens)] for image in expected} for _ in outputs]
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge

    programs, absent = {"METEOR": Meteor}, dict[str, str]()
    if any((installed / "spice" / "lib").glob("stanford-corenlp-*-models.jar")):
        from pycocoevalcap.spice.spice import Spice  # downloads the language models otherwise

        programs["SPICE"] = Spice
    else:
        absent["SPICE"] = "its language models are not installed"
    beside: dict[str, list[float]] = {}
    for name, program in programs.items():
        try:
            scorer = program()
            beside[name] = [scorer.compute_score(expected, each)[0] for each in hypotheses]
        except (ValueError, OSError, subprocess.SubprocessError) as error:
            absent[name] = f"its program failed ({type(error).__name__})"
    found = []
    for place, each in enumerate(hypotheses):
        bleu, _ = Bleu(4).compute_score(expected, each, verbose=0)
        rouge, _ = Rouge().compute_score(expected, each)
        cider, by_image = Cider().compute_score(expected, each)
        values = {CIDER: cider, **{f"BLEU-{size}": value for size, value in enumerate(bleu, start=1)}, "ROUGE-L": rouge}
        values |= {name: scores[place] for name, scores in beside.items()}
        times_100 = {name: 100 * float(value) for name, value in values.items()}
        found.append(Scores(times_100, [100 * float(one) for one in by_image], absent))
    return found
