"""Translation: BLEU against the raw references and their NLL, for the averaged checkpoints and the last one."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import records
from ..cli import children
from ..data import folders
from ..data.text import folder as text_folder
from ..data.text.bleu import perfect
from ..data.text.folder import Corpus, check_texts, require_subset
from ..files import read_lines, read_rows, write_text
from ..runs.made_from import MadeFrom, is_reused
from ..runs.run import EVALUATE, ByModel, Results, Run, Scored
from ..runs.trained_on import check_same_dictionaries, direction_of, find_data, setting
from . import decoding, likelihood, published, significance, translation_scores
from .task import (
    LAST,
    NLL,
    Analysed,
    Batch,
    Candidate,
    Measure,
    ScoredModel,
    ScoringJob,
    Studied,
    TableRows,
    Task,
    Texts,
    Words,
    check_conditions,
    mean_of_sums,
)

if TYPE_CHECKING:
    import numpy as np

    from .loading import Loaded

POSITIONS = 1024  # fairseq's default of --max-source-positions and --max-target-positions
TOLERANCE = 0.001  # results.json has four decimals


@dataclass(frozen=True)
class Translations:
    """The hypotheses of one model, the references, and sacrebleu's tokeniser for both."""

    hypotheses: list[str]
    references: list[str]
    tokenize: str


def inputs(job: ScoringJob[Any], model: ScoredModel) -> list[Path]:
    """Return the files that a translation by a model depends on."""
    return [*model.made_from, *job.data.inputs(job.subset)]


def settings_of(
    job: ScoringJob[Any], settings: Mapping[str, str | None], blank: Collection[int] = ()
) -> dict[str, Any]:
    """Return everything else that a translation, or its NLL, depends on. blank: indices of the blank sources"""
    return {**settings, "cpu": job.cpu, "form": job.data.form.form, "blank": sorted(blank)}


def decoding_settings(job: ScoringJob[Any]) -> dict[str, str | None]:
    """Return the settings of fairseq-generate as recorded in results.json."""
    return {**job.settings.decoding, "post-process": job.data.post_process}


def translate(
    job: ScoringJob[Any], model: ScoredModel, lock: int | None = None, blank: Collection[int] = ()
) -> list[str]:
    """Return the hypotheses of one model, reusing RUN/decode if the inputs and settings have not changed.

    blank: indices of the blank sources, whose translations are empty; fairseq would invent some
    Raises: DecodingError if fairseq-generate fails or skips a sentence.
    """
    log, hypotheses, note = (job.decoded(model.name, kind) for kind in ("log", "hyp", "json"))
    settings = settings_of(job, decoding_settings(job), blank)
    if is_reused(hypotheses, note, inputs(job, model), settings):
        return read_lines(hypotheses)
    mine, corpus = MadeFrom.of(inputs(job, model), settings), job.data
    command = decoding.generate_command(
        corpus.path,
        model.file,
        job.subset,
        corpus.post_process,
        job.cpu,
        job.settings.decoding,
        job.task_flags,
    )
    count = len(corpus.references(job.subset))
    decoding.decode(command, log, lock, count)
    lines = [corpus.form.restore(line) for line in decoding.read_hypotheses(log)]
    if len(lines) != count:
        reference = corpus.reference(job.subset)
        raise decoding.DecodingError(f"{log}: {len(lines)} hypotheses, but {reference} has {count} lines")
    lines = ["" if number in blank else line for number, line in enumerate(lines)]
    write_text(hypotheses, "".join(f"{line}\n" for line in lines))
    records.write(note, mine)
    return lines


def reference_nll(job: ScoringJob[Any], model: ScoredModel) -> list[likelihood.Sentence]:
    """Return the NLL of every reference under one model, reusing RUN/decode if its inputs have not changed."""
    file, note = (job.decoded(model.name, kind) for kind in ("nll", "nll.json"))
    settings = settings_of(job, {})
    if is_reused(file, note, inputs(job, model), settings):
        return likelihood.read_nll(file)
    mine = MadeFrom.of(inputs(job, model), settings)
    sentences = likelihood.measure_nll(job, model.file)
    file.parent.mkdir(exist_ok=True)
    likelihood.write_nll(file, sentences)
    records.write(note, mine)
    return sentences


def check_lengths(corpus: Corpus, subset: str, source: int, target: int, truncates: bool) -> None:
    """Check that every sentence of a subset is short enough for the model.

    source, target: the positions of the model; truncates: whether longer sources are shortened
    Raises: ValueError naming the file and line of the first sentence that is too long.
    """
    for language, most in ((corpus.source, source), (corpus.target, target)):
        lengths = corpus.lengths(subset, language)
        long = [number for number, length in enumerate(lengths, start=1) if length > most]
        if long and not (truncates and language == corpus.source):
            side = "source" if language == corpus.source else "target"
            raise ValueError(
                f"{corpus.path / 'ref' / f'{subset}.{language}'}:{long[0]}: {lengths[long[0] - 1]:,} subwords, but the "
                f"model has {most:,} positions; too long: {len(long):,} of {len(lengths):,} lines; shorten or remove "
                f"them and prepare the corpus again, or train with a larger --max-{side}-positions"
            )


def fitting(loaded: Loaded, subset: str) -> np.ndarray:
    """Return, for every pair of a loaded subset, whether both sides are short enough for the model."""
    import numpy as np

    dataset, longest = loaded.task.dataset(subset), loaded.model.max_positions()
    found: np.ndarray = np.asarray(dataset.src_sizes) <= longest[0]
    return found & (np.asarray(dataset.tgt_sizes) <= longest[1])


def text_batches(loaded: Loaded, subset: str, chosen: list[int], max_tokens: int) -> Iterator[Batch]:
    from .batches import batches  # imports torch

    return batches(loaded, subset, chosen, max_tokens)


def digest(lines: Sequence[str]) -> str:
    """Return the SHA-256 of reference texts, in hex."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def data_of(run: Run, results: Results) -> Path:
    """Return the data folder named in results; if that path does not exist, find it as evaluation does."""
    from ..fairseq_patches import load_checkpoint

    named = Path(results.data)
    return named if named.is_dir() or not run.last.is_file() else find_data(run, load_checkpoint(run.last))


def _nll_parts(run: Run, subset: str) -> list[list[float]]:
    return [[one.nll, one.tokens] for one in likelihood.read_nll(run.file(f"decode/{subset}.averaged.nll"))]


def _bleu_parts(run: Run, subset: str) -> list[list[float]]:
    def counts(fields: list[str]) -> list[float]:
        return [float(field) for field, _ in zip(fields, range(10), strict=True)]

    return read_rows(run.file(f"decode/{subset}.averaged.bleu"), counts, "two lengths and eight n-gram counts")


def score_together(
    jobs: Sequence[ScoringJob[Corpus]], model: str, tests: Mapping[str, Sequence[str]]
) -> dict[str, Scored]:
    hypotheses: list[str] = []
    references: list[str] = []
    sentences: list[likelihood.Sentence] = []
    for job in jobs:
        translated, expected = read_lines(job.decoded(model, "hyp")), job.data.references(job.subset)
        rows = translation_scores.statistics(translated, expected, job.data.tokenize)
        write_text(job.decoded(model, "bleu"), "".join("\t".join(map(str, row)) + "\n" for row in rows))
        if job.subset in tests["BLEU"]:
            hypotheses += translated
            references += expected
        if job.subset in tests[NLL]:
            sentences += likelihood.read_nll(job.decoded(model, "nll"))
    corpus = jobs[0].data
    scores = {
        NLL: translation_scores.Score(likelihood.mean(sentences), likelihood.UNIT),
        "BLEU": translation_scores.bleu(hypotheses, references, corpus.tokenize),
        "chrF": translation_scores.side_by_side(hypotheses, references, corpus.form, corpus.tokenize)["chrF"],
    }
    return {name: Scored(round(score.value, 5), score.signature) for name, score in scores.items()}


def load_examples(loaded: Loaded, subset: str) -> None:
    require_subset(loaded.data, subset, loaded.task.cfg.source_lang, loaded.task.cfg.target_lang)
    check_texts(loaded.data, subset)
    loaded.task.load_dataset(subset)


STUDIED = Studied(
    measures={
        NLL: Measure(_nll_parts, mean_of_sums, 4, True),
        "BLEU": Measure(_bleu_parts, translation_scores.bleu_of, 2, False),
    },
    best="averaged",
    curve="valid NLL",
    kept_files=("*.nll", "*.averaged.hyp", "*.averaged.bleu", "*.epochs*.hyp", "*.epochs*.bleu"),
    score_together=score_together,
    shown=("chrF",),
    floor=("BLEU", 10.0),
)


class Translation(Task[Corpus]):
    """Machine translation."""

    folder = folders.TEXT
    words = Words("sentence", "token", "translation")
    studied = STUDIED
    analysed = Analysed(load_examples, fitting, text_batches)
    has_averages = True
    table_headings = ("BLEU avg", "BLEU last", "tokens/s")
    headings = ("run", "architecture", "BLEU", "difference", "95% interval", "p bootstrap", "p randomisation")

    def open_data(self, path: Path, subset: str, run: Run, state: dict[str, Any]) -> Corpus:
        corpus = Corpus.read(path, direction_of(state, run.last, path))
        text_folder.check(corpus.path)
        text_folder.check_dictionaries(corpus.path)
        check_same_dictionaries(run.last, state, corpus.path)
        reference = corpus.reference(subset)
        if subset in corpus.skipped:
            raise ValueError(
                f"--subset {subset}: {corpus.path} was prepared without it ({corpus.skipped[subset]}); "
                "prepare the corpus again with this subset's files"
            )
        if not reference.is_file():
            raise ValueError(f"{reference}: no such reference text; --subset must name subsets of the data folder")
        require_subset(corpus.path, subset, corpus.source, corpus.target)
        corpus.references(subset)
        task = setting(state.get("cfg"), "task")
        check_lengths(
            corpus,
            subset,
            setting(task, "max_source_positions") or POSITIONS,
            setting(task, "max_target_positions") or POSITIONS,
            bool(setting(task, "truncate_source")),
        )
        return corpus

    def task_flags(self, cfg: Any, data: Corpus) -> tuple[str, ...]:
        return (*super().task_flags(cfg, data), *decoding.translation_flags(cfg, data))

    def test_set(self, results: Results) -> str:
        direction = (results.source, results.target) if results.target else None
        return digest(Corpus.read(Path(results.data), direction).references(results.subset))

    def nll(self, job: ScoringJob[Corpus], model: ScoredModel) -> float:
        return likelihood.mean(reference_nll(job, model))

    def score(self, job: ScoringJob[Corpus], results: Results, lock: int) -> tuple[Results, list[str]]:
        corpus, references = job.data, job.data.references(job.subset)
        best, blank = perfect(references, corpus.tokenize), corpus.blank_lines(job.subset)
        is_published = not published.differences(job)
        scores, beside = {}, {}
        for model in job.models():
            hypotheses = translate(job, model, lock, blank)
            score = scores[model.name] = translation_scores.bleu(hypotheses, references, corpus.tokenize)
            beside[model.name] = {
                **({published.LABEL: score} if is_published else {}),
                **translation_scores.side_by_side(hypotheses, references, corpus.form, corpus.tokenize),
                NLL: translation_scores.Score(self.nll(job, model), likelihood.UNIT),
            }
        texts = [str(job.decoded(name, "hyp")) for name in scores]
        reference = corpus.reference(job.subset)
        if references != read_lines(reference):  # they are scored in another form, lower-cased and tokenised
            reference = job.run.file(f"decode/{job.subset}.reference")
            write_text(reference, "".join(f"{line}\n" for line in references))
        children.show(["sacrebleu", str(reference), "-i", *texts, "-tok", corpus.tokenize])
        results = replace(
            results,
            bleu=ByModel(**{name: round(scores[name].value, 4) for name in ("averaged", LAST)}),
            signature=scores["averaged"].signature,
            source=corpus.source,
            target=corpus.target,
            tokenize=corpus.tokenize,
            sentences=len(references),
            averaged_checkpoints=[file.name for file in job.averages["averaged"]],
            decoding=decoding_settings(job),
            scores={
                name: {label: Scored(round(score.value, 4), score.signature) for label, score in by_label.items()}
                for name, by_label in beside.items()
            },
        )
        named, public = (f"BLEU {published.LABEL}", published.beside(job)) if is_published else ("BLEU", "")
        bleu = ", ".join(f"{name} {score.value:.2f}" for name, score in scores.items())
        nll = ", ".join(f"{name} {by_label[NLL].value:.4f}" for name, by_label in beside.items())
        lines = [f"{named} {bleu}  {results.signature}  {public}".rstrip(), f"NLL {nll}  {likelihood.UNIT}"]
        if best < 100:
            chrf = ", ".join(f"{name} {by_label['chrF'].value:.2f}" for name, by_label in beside.items())
            why = f"a perfect translation would score BLEU {best:.2f}, because no reference has four tokens"
            lines.append(f"chrF {chrf}  {beside['averaged']['chrF'].signature}  ({why})")
        return results, lines

    def not_as_published(self, job: ScoringJob[Corpus]) -> list[str]:
        return published.differences(job)

    def has_made(self, results: Results) -> bool:
        return results.bleu is not None

    def signature(self, results: Results) -> str:
        return f"BLEU {results.signature}"

    def table_scores(self, run: Run, results: Results) -> tuple[str, str]:
        assert results.bleu is not None
        return f"{results.bleu.averaged:.2f}", f"{results.bleu.last:.2f}"

    def read_outputs(
        self, run: Run, subset: str, results: Results, model: str, data: Path | None
    ) -> tuple[float, Translations]:
        expected = float(getattr(results.bleu, model))
        corpus = self._corpus(run, results, data)
        text = run.file(f"decode/{subset}.{model}.hyp")
        hypotheses = read_lines(text)
        references = corpus.references(subset)
        score = translation_scores.bleu(hypotheses, references, corpus.tokenize)
        if abs(score.value - expected) > TOLERANCE or score.signature != results.signature:
            raise ValueError(
                f"{run.results(subset)}: contains BLEU {expected:.2f} {results.signature}, but {text} has "
                f"{score.value:.2f} {score.signature} against {corpus.reference(subset)}; run {EVALUATE} "
                f"{run.path} again"
            )
        return expected, Translations(hypotheses, references, corpus.tokenize)

    def _corpus(self, run: Run, results: Results, data: Path | None) -> Corpus:
        """Return the data folder of results, with the direction and the tokeniser that they were scored with."""
        corpus = Corpus.read(data or data_of(run, results), results.direction)
        return replace(corpus, tokenize=results.tokenize or corpus.tokenize)

    def with_tokenizer(self, run: Run, results: Results, tokenize: str, data: Path | None) -> Results:
        corpus, signature = self._corpus(run, results, data), ""
        references, found = corpus.references(results.subset), dict[str, float]()
        for model in ("averaged", LAST):
            hypotheses = read_lines(run.file(f"decode/{results.subset}.{model}.hyp"))
            score = translation_scores.bleu(hypotheses, references, tokenize)
            found[model], signature = round(score.value, 4), score.signature
        return replace(results, bleu=ByModel(**found), signature=signature, tokenize=tokenize)

    def check_comparable(self, first: Candidate, other: Candidate) -> None:
        check_conditions(first, other)
        texts = [each.outputs.references for each in (first, other)]
        if texts[0] != texts[1]:
            digests = [digest(text)[:12] for text in texts]
            raise ValueError(
                f"{first.path} and {other.path} cannot be compared: reference texts differ "
                f"(sha256 {digests[0]}..., {digests[1]}...)"
            )

    def compare(self, candidates: Sequence[Candidate]) -> tuple[TableRows, list[str]]:
        baseline = candidates[0].outputs
        systems = [each.outputs.hypotheses for each in candidates]
        tested, signatures = significance.bleu_tests(systems, baseline.references, baseline.tokenize)
        rows: TableRows = []
        for candidate, test in zip(candidates, tested, strict=True):
            tests = ("", "baseline", "baseline")
            if rows:
                difference = f"{test.score - tested[0].score:+.2f}"
                tests = (difference, f"{test.p_bootstrap:.4f}", f"{test.p_randomisation:.4f}")
            interval = f"{test.mean:.2f} ± {test.half:.2f}"
            architecture = candidate.results.architecture
            rows.append((candidate.name, architecture, f"{test.score:.2f}", tests[0], interval, *tests[1:]))
        results = candidates[0].results
        return rows, [f"{results.corpus} {results.subset}, {candidates[0].model}", *signatures]

    def spread(self, seeds: Sequence[Candidate]) -> str:
        scores = [each.score for each in seeds]
        return f"BLEU {statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}"

    def texts(self, candidates: Sequence[Candidate], data: Path | None = None) -> Texts:
        """Return sources (empty if not stored next to the references), references and hypotheses."""
        first = candidates[0]
        corpus = self._corpus(Run(first.path), first.results, data)
        path = corpus.path / f"ref/{first.results.subset}.{corpus.source}"
        references = first.outputs.references
        sources = read_lines(path) if path.is_file() else [""] * len(references)
        return Texts(
            sources, [[line] for line in references], {each.name: each.outputs.hypotheses for each in candidates}
        )


TRANSLATION = Translation()
