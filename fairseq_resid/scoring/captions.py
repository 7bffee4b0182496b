"""Image captioning: CIDEr and the other scores of the COCO tools, and the NLL of the references."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data import folders
from ..data.captions import caption_folder
from ..data.captions.caption_folder import CaptionData
from ..files import read_lines, sha256
from ..runs.run import EVALUATE, Results, Run, Scored
from ..runs.trained_on import check_same_dictionaries
from . import caption_scores, likelihood, significance
from .caption_scores import CIDER, CaptionScore
from .generated import AVERAGED, TextTask, data_of, decoding_settings, translate
from .likelihood import Sentence
from .significance import Paired
from .task import (
    NLL,
    TOLERANCE,
    Candidate,
    ExampleTask,
    Measure,
    ScoringJob,
    Studied,
    Texts,
    Words,
    cannot_compare,
    check_conditions,
    mean_of_sums,
    not_scored,
)

if TYPE_CHECKING:
    from .loading import Loaded

UNIT = "nats per caption word with EOS, unsmoothed, teacher-forced"
BESIDE = "BLEU-4"  # the score that tables show next to CIDEr
SHOWN = (BESIDE, "METEOR", "ROUGE-L")


@dataclass(frozen=True)
class Outputs:
    """The scores and the captions of one model, by image."""

    scores: list[CaptionScore]
    captions: list[str]

    @property
    def cider(self) -> list[float]:
        return [one.cider for one in self.scores]


def _cider_parts(run: Run, subset: str) -> list[list[float]]:
    return [[one.cider, 1.0] for one in CaptionScore.read(run.decoded(subset, AVERAGED, "cider"))]


def _nll_parts(run: Run, subset: str) -> list[list[float]]:
    """Return the NLL and the number of words of every image, because the captions of an image are not independent."""
    file, beside = (run.decoded(subset, AVERAGED, kind) for kind in ("nll", "cider"))
    scores, sentences = CaptionScore.read(beside), Sentence.read(file)
    count = sum(one.references for one in scores)
    if count != len(sentences):
        raise ValueError(
            f"{file}: {len(sentences):,} captions, but {count:,} references in {beside}; "
            f"run {EVALUATE} {run.path} again"
        )
    rest = iter(sentences)
    found = [[next(rest) for _ in range(one.references)] for one in scores]
    return [[sum(one.nll for one in each), float(sum(one.tokens for one in each))] for each in found]


class Captioning(TextTask[CaptionData], ExampleTask[CaptionData]):
    folder = folders.CAPTIONS
    score_name = CIDER
    words = Words("captioned image", "word", "caption")
    studied = Studied(
        measures={
            NLL: Measure(_nll_parts, mean_of_sums, 4, True),
            CIDER: Measure(_cider_parts, mean_of_sums, 2, False),
        },
        best=AVERAGED,
        curve="valid NLL",
        kept_files=("*.averaged.cider",),  # a study also keeps *.nll, because translation lists it
        shown=SHOWN,
        floor=(CIDER, 10.0),
    )
    table_headings = (f"{CIDER} avg", f"{CIDER} last", "tokens/s")
    headings = ("run", "architecture", CIDER, "difference", "95% interval", "p bootstrap", BESIDE)

    def open_data(self, path: Path, subset: str, run: Run, state: dict[str, Any]) -> CaptionData:
        data = CaptionData(path, caption_folder.CaptionRecord.checked(path))
        caption_folder.open_regions(path, subset, data.record)
        check_same_dictionaries(run.last, state, path)
        data.references(subset)
        return data

    def task_flags(self, cfg: Any, data: CaptionData) -> tuple[str, ...]:
        return (*super().task_flags(cfg, data), "--by-image")

    def test_set(self, results: Results) -> str:
        return sha256(Path(results.data) / f"ref/{results.subset}.tsv")

    def score(self, job: ScoringJob[CaptionData], results: Results, lock: int) -> tuple[Results, list[str]]:
        caption_scores.folder()  # raises before decoding, not after it
        references = job.data.references(job.subset)
        signature, lines = caption_scores.signature(references.texts), list[str]()
        scores: dict[str, dict[str, Scored]] = {}
        outputs = [translate(job, model, lock) for model in job.models]
        for model, found in zip(job.models, caption_scores.score(outputs, references.texts), strict=True):
            by_image = zip(references.ids, found.cider, references.texts, strict=True)
            CaptionScore.write(
                job.decoded(model, "cider"),
                [CaptionScore(image, cider, len(texts)) for image, cider, texts in by_image],
            )
            scores[model] = {name: Scored(round(value, 4), signature) for name, value in found.values.items()}
            scores[model][NLL] = Scored(round(self.nll(job, model), 4), UNIT)
            shown = ", ".join(f"{name} {value:.2f}" for name, value in found.values.items())
            absent = "".join(f", {name} not computed ({reason})" for name, reason in found.absent.items())
            lines.append(f"{model}: {shown}{absent}, NLL {scores[model][NLL].score:.4f}")
        results = replace(
            results,
            signature=signature,
            sentences=len(references),
            averaged_checkpoints=[file.name for file in job.averages[AVERAGED]],
            decoding=decoding_settings(job),
            scores=scores,
        )
        return results, [*lines, f"{signature}; NLL in {UNIT}"]

    def score_together(
        self, jobs: Sequence[ScoringJob[CaptionData]], model: str, tests: Mapping[str, Sequence[str]]
    ) -> dict[str, Scored]:
        """Return the CIDEr and the NLL of all test sets, and the other scores if there is only one test set.

        CIDEr uses the document frequencies of each test set separately.
        """
        scores = [
            one for job in jobs if job.subset in tests[CIDER] for one in CaptionScore.read(job.decoded(model, "cider"))
        ]
        sentences = [
            one for job in jobs if job.subset in tests[NLL] for one in Sentence.read(job.decoded(model, "nll"))
        ]
        results = jobs[0].run.read_results(jobs[0].subset)
        beside = results.scores[model] if len(jobs) == 1 else {}
        return {
            **{name: beside[name] for name in SHOWN if name in beside},
            CIDER: Scored(round(statistics.fmean(one.cider for one in scores), 5), results.signature),
            NLL: Scored(round(likelihood.mean(sentences), 5), UNIT),
        }

    def load_examples(self, loaded: Loaded, subset: str) -> None:
        loaded.task.datasets[subset] = loaded.task.read_split(subset, by_image=False)

    def read_outputs(
        self, run: Run, subset: str, results: Results, model: str, data: Path | None
    ) -> tuple[float, Outputs]:
        expected, file = self.main_score(run, results, model), run.decoded(subset, model, "cider")
        outputs = Outputs(CaptionScore.read(file), read_lines(run.decoded(subset, model, "hyp")))
        found = statistics.fmean(outputs.cider) if outputs.scores else float("nan")
        if not abs(found - expected) <= TOLERANCE or len(outputs.captions) != len(outputs.scores):
            of_captions = f"{found:.2f} for {len(outputs.captions):,} captions"
            raise not_scored(run, subset, f"{CIDER} {expected:.2f}", file, of_captions)
        return expected, outputs

    def check_comparable(self, first: Candidate, other: Candidate) -> None:
        check_conditions(first, other)
        files = {each.results.preparation.get("captions") for each in (first, other)}
        if len(files) > 1 or [one.image for one in first.outputs.scores] != [one.image for one in other.outputs.scores]:
            raise cannot_compare(first, other, "evaluated on different images or references")

    def interval(self, candidate: Candidate) -> tuple[float, float]:
        cider = candidate.outputs.cider
        own = significance.bootstrap(cider, [0.0] * len(cider))
        return own.low, own.high

    def test(self, candidate: Candidate, baseline: Candidate) -> Paired:
        # CIDEr is a mean over images; its document frequencies are those of the whole test set in every resample.
        return significance.bootstrap(candidate.outputs.cider, baseline.outputs.cider)

    def notes(self, baseline: Candidate) -> list[str]:
        results = baseline.results
        return [
            f"{results.corpus} {results.subset}, {results.sentences:,} images, {baseline.model}",
            f"95% intervals over images: of {CIDER} for the first run, of the difference for the others; paired "
            f"bootstrap, {significance.RESAMPLES:,} resamples, seed {significance.SEED}",
            self.signature(results),
        ]

    def row(self, candidate: Candidate, *tests: str) -> tuple[str, ...]:
        scores = candidate.results.scores[candidate.model]
        beside = f"{scores[BESIDE].score:.2f}" if BESIDE in scores else ""
        return (*super().row(candidate, *tests), beside)

    def texts(self, candidates: Sequence[Candidate], data: Path | None = None) -> Texts:
        first = candidates[0]
        path, subset = data or data_of(Run(first.path), first.results), first.results.subset
        images = CaptionData(path, caption_folder.CaptionRecord.of(path))
        references = images.references(subset)
        outputs = {each.name: each.outputs.captions for each in candidates}
        sources = [f"image {image}" for image in references.ids]
        return Texts(sources, references.texts, outputs, images.thumbnails(subset))


CAPTIONING = Captioning()
