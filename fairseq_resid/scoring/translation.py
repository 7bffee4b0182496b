"""Translation: BLEU against the raw references and their NLL, for the averaged checkpoints and the last one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli import children
from ..console import signed
from ..data import folders
from ..data.text import folder as text_folder
from ..data.text.bleu import perfect
from ..data.text.folder import Corpus, check_texts, require_subset
from ..files import read_lines, read_rows, write_text
from ..runs.run import Results, Run, Scored
from ..runs.trained_on import check_same_dictionaries, direction_of, setting
from . import decoding, likelihood, published, significance, translation_scores
from .generated import AVERAGED, TextTask, data_of, decoding_settings, translate
from .likelihood import Sentence
from .task import (
    LAST,
    NLL,
    TOLERANCE,
    Candidate,
    Measure,
    ScoringJob,
    Studied,
    TableRows,
    Texts,
    Words,
    cannot_compare,
    check_conditions,
    mean_of_sums,
    not_scored,
)

if TYPE_CHECKING:
    from .loading import Loaded

BLEU = "BLEU"
POSITIONS = 1024  # fairseq's default of --max-source-positions and --max-target-positions


@dataclass(frozen=True)
class Translations:
    """The hypotheses of one model, the references, and sacrebleu's tokeniser for both."""

    hypotheses: list[str]
    references: list[str]
    tokenize: str


def check_lengths(corpus: Corpus, subset: str, task: Any) -> None:
    """Check that every sentence of a subset is short enough for a model; task: in the config of its checkpoint.

    Raises: ValueError naming the file and line of the first sentence that is too long.
    """
    for side, language in (("source", corpus.source), ("target", corpus.target)):
        most = setting(task, f"max_{side}_positions") or POSITIONS
        lengths = corpus.lengths(subset, language)
        long = [number for number, length in enumerate(lengths, start=1) if length > most]
        if long and not (side == "source" and setting(task, "truncate_source")):
            raise ValueError(
                f"{corpus.path / 'ref' / f'{subset}.{language}'}:{long[0]}: {lengths[long[0] - 1]:,} subwords, but the "
                f"model has {most:,} positions; too long: {len(long):,} of {len(lengths):,} lines; shorten or remove "
                f"them and prepare the corpus again, or train with a larger --max-{side}-positions"
            )


def digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _nll_parts(run: Run, subset: str) -> list[list[float]]:
    return [[one.nll, one.tokens] for one in Sentence.read(run.decoded(subset, AVERAGED, "nll"))]


def _bleu_parts(run: Run, subset: str) -> list[list[float]]:
    def counts(fields: list[str]) -> list[float]:
        return [float(field) for field, _ in zip(fields, range(10), strict=True)]

    return read_rows(run.decoded(subset, AVERAGED, "bleu"), counts, "two lengths and eight n-gram counts")


class Translation(TextTask[Corpus]):
    folder = folders.TEXT
    score_name = BLEU
    words = Words("sentence", "token", "translation")
    studied = Studied(
        measures={
            NLL: Measure(_nll_parts, mean_of_sums, 4, True),
            BLEU: Measure(_bleu_parts, translation_scores.bleu_of, 2, False),
        },
        best=AVERAGED,
        curve="valid NLL",
        kept_files=("*.nll", "*.averaged.hyp", "*.averaged.bleu", "*.epochs*.hyp", "*.epochs*.bleu"),
        shown=("chrF",),
        floor=(BLEU, 10.0),
    )
    table_headings = ("BLEU avg", "BLEU last", "tokens/s")
    headings = ("run", "architecture", BLEU, "difference", "95% interval", "p bootstrap", "p randomisation")

    def open_data(self, path: Path, subset: str, run: Run, state: dict[str, Any]) -> Corpus:
        corpus = Corpus.read(path, direction_of(state, run.last, path))
        text_folder.check(corpus.path)
        check_same_dictionaries(run.last, state, corpus.path)
        reference = corpus.reference(subset)
        if name := corpus.record.skipped.get(subset):
            raise ValueError(
                f"--subset {subset}: {corpus.path} was prepared without it ({name}); "
                "prepare the corpus again with this subset's files"
            )
        if not reference.is_file():
            raise ValueError(f"{reference}: no such reference text; --subset must name subsets of the data folder")
        require_subset(corpus.path, subset, corpus.source, corpus.target)
        corpus.references(subset)
        check_lengths(corpus, subset, setting(state.get("cfg"), "task"))
        return corpus

    def task_flags(self, cfg: Any, data: Corpus) -> tuple[str, ...]:
        return (*super().task_flags(cfg, data), *decoding.translation_flags(cfg, data))

    def test_set(self, results: Results) -> str:
        direction = (results.source, results.target) if results.target else None
        return digest(Corpus.read(Path(results.data), direction).references(results.subset))

    def score(self, job: ScoringJob[Corpus], results: Results, lock: int) -> tuple[Results, list[str]]:
        corpus, references = job.data, job.data.references(job.subset)
        best, blank = perfect(references, corpus.tokenize), corpus.blank_lines(job.subset)
        is_published = not published.differences(job)
        scores, beside = {}, {}
        for model in job.models:
            hypotheses = translate(job, model, lock, blank)
            score = scores[model] = translation_scores.bleu(hypotheses, references, corpus.tokenize)
            beside[model] = {
                **({published.LABEL: score} if is_published else {}),
                **translation_scores.side_by_side(hypotheses, references, corpus.form, corpus.tokenize),
                NLL: Scored(self.nll(job, model), likelihood.UNIT),
            }
        texts = [str(job.decoded(name, "hyp")) for name in scores]
        reference = corpus.reference(job.subset)
        if references != read_lines(reference):  # they are scored in another form, lower-cased and tokenised
            reference = job.run.file(f"decode/{job.subset}.reference")
            write_text(reference, "".join(f"{line}\n" for line in references))
        children.show(["sacrebleu", str(reference), "-i", *texts, "-tok", corpus.tokenize])
        results = replace(
            results,
            bleu={name: round(scores[name].score, 4) for name in (AVERAGED, LAST)},
            signature=scores[AVERAGED].signature,
            source=corpus.source,
            target=corpus.target,
            tokenize=corpus.tokenize,
            sentences=len(references),
            averaged_checkpoints=[file.name for file in job.averages[AVERAGED]],
            decoding=decoding_settings(job),
            scores={
                name: {label: score.rounded(4) for label, score in by_label.items()}
                for name, by_label in beside.items()
            },
        )
        named, public = (f"BLEU {published.LABEL}", published.beside(job)) if is_published else (BLEU, "")
        bleu = ", ".join(f"{name} {score.score:.2f}" for name, score in scores.items())
        nll = ", ".join(f"{name} {by_label[NLL].score:.4f}" for name, by_label in beside.items())
        lines = [f"{named} {bleu}  {results.signature}  {public}".rstrip(), f"NLL {nll}  {likelihood.UNIT}"]
        if best < 100:
            chrf = ", ".join(f"{name} {by_label['chrF'].score:.2f}" for name, by_label in beside.items())
            why = f"a perfect translation would score BLEU {best:.2f}, because no reference has four tokens"
            lines.append(f"chrF {chrf}  {beside[AVERAGED]['chrF'].signature}  ({why})")
        return results, lines

    def score_together(
        self, jobs: Sequence[ScoringJob[Corpus]], model: str, tests: Mapping[str, Sequence[str]]
    ) -> dict[str, Scored]:
        hypotheses: list[str] = []
        references: list[str] = []
        sentences: list[Sentence] = []
        for job in jobs:
            translated, expected = read_lines(job.decoded(model, "hyp")), job.data.references(job.subset)
            rows = translation_scores.statistics(translated, expected, job.data.tokenize)
            write_text(job.decoded(model, "bleu"), "".join("\t".join(map(str, row)) + "\n" for row in rows))
            if job.subset in tests[BLEU]:
                hypotheses += translated
                references += expected
            if job.subset in tests[NLL]:
                sentences += Sentence.read(job.decoded(model, "nll"))
        corpus = jobs[0].data
        scores = {
            NLL: Scored(likelihood.mean(sentences), likelihood.UNIT),
            BLEU: translation_scores.bleu(hypotheses, references, corpus.tokenize),
            "chrF": translation_scores.side_by_side(hypotheses, references, corpus.form, corpus.tokenize)["chrF"],
        }
        return {name: score.rounded(5) for name, score in scores.items()}

    def not_as_published(self, job: ScoringJob[Corpus]) -> list[str]:
        return published.differences(job)

    def load_examples(self, loaded: Loaded, subset: str) -> None:
        require_subset(loaded.data, subset, loaded.task.cfg.source_lang, loaded.task.cfg.target_lang)
        check_texts(loaded.data, subset)
        loaded.task.load_dataset(subset)

    def has_made(self, results: Results) -> bool:
        return results.bleu is not None

    def main_score(self, run: Run, results: Results, model: str) -> float:
        assert results.bleu is not None
        return results.bleu[model]

    def read_outputs(
        self, run: Run, subset: str, results: Results, model: str, data: Path | None
    ) -> tuple[float, Translations]:
        expected, corpus = self.main_score(run, results, model), self._corpus(run, results, data)
        text = run.decoded(subset, model, "hyp")
        hypotheses, references = read_lines(text), corpus.references(subset)
        found = translation_scores.bleu(hypotheses, references, corpus.tokenize)
        if abs(found.score - expected) > TOLERANCE or found.signature != results.signature:
            against = f"{found.score:.2f} {found.signature} against {corpus.reference(subset)}"
            raise not_scored(run, subset, f"BLEU {expected:.2f} {results.signature}", text, against)
        return expected, Translations(hypotheses, references, corpus.tokenize)

    def _corpus(self, run: Run, results: Results, data: Path | None) -> Corpus:
        """Return the data folder of results, with the direction and the tokeniser that they were scored with."""
        corpus = Corpus.read(data or data_of(run, results), results.direction)
        return replace(corpus, tokenize=results.tokenize or corpus.tokenize)

    def with_tokenizer(self, run: Run, results: Results, tokenize: str, data: Path | None) -> Results:
        references = self._corpus(run, results, data).references(results.subset)
        found = {
            model: translation_scores.bleu(read_lines(run.decoded(results.subset, model, "hyp")), references, tokenize)
            for model in (AVERAGED, LAST)
        }
        bleu = {model: round(score.score, 4) for model, score in found.items()}
        return replace(results, bleu=bleu, signature=found[LAST].signature, tokenize=tokenize)

    def check_comparable(self, first: Candidate, other: Candidate) -> None:
        check_conditions(first, other)
        texts = [each.outputs.references for each in (first, other)]
        if texts[0] != texts[1]:
            mine, theirs = (digest(text)[:12] for text in texts)
            raise cannot_compare(first, other, f"reference texts differ (sha256 {mine}..., {theirs}...)")

    def compare(self, candidates: Sequence[Candidate]) -> tuple[TableRows, list[str]]:
        baseline = candidates[0].outputs
        systems = [each.outputs.hypotheses for each in candidates]
        tested, signatures = significance.bleu_tests(systems, baseline.references, baseline.tokenize)
        rows: TableRows = []
        for candidate, tests in zip(candidates, tested, strict=True):
            difference, p = "", ["baseline", "baseline"]
            if rows:
                difference = signed(tests[0].score - tested[0][0].score, 2)
                # sacrebleu would report a p of 1/1,001 for equal texts, because no resample differs by more than 0.
                are_equal = candidate.outputs.hypotheses == baseline.hypotheses
                p = [f"{1.0 if are_equal else test.p_value:.4f}" for test in tests]
            rows.append(self.row(candidate, difference, f"{tests[0].mean:.2f} ± {tests[0].ci:.2f}", *p))
        results = candidates[0].results
        return rows, [f"{results.corpus} {results.subset}, {candidates[0].model}", *signatures]

    def texts(self, candidates: Sequence[Candidate], data: Path | None = None) -> Texts:
        """Return sources (empty if not stored next to the references), references and hypotheses."""
        first = candidates[0]
        corpus = self._corpus(Run(first.path), first.results, data)
        path = corpus.path / f"ref/{first.results.subset}.{corpus.source}"
        references = first.outputs.references
        sources = read_lines(path) if path.is_file() else [""] * len(references)
        hypotheses = {each.name: each.outputs.hypotheses for each in candidates}
        return Texts(sources, [[line] for line in references], hypotheses)


TRANSLATION = Translation()
