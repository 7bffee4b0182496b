"""Tasks whose models generate text, translation and captioning: outputs, the NLL of the references, tables.

The outputs of a model are in RUN/decode: SUBSET.MODEL.log of fairseq-generate, SUBSET.MODEL.hyp with one line for each
source, and SUBSET.MODEL.nll with the NLL of each reference. They are reused while their inputs are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import read_lines, write_text
from ..runs.made_from import reuse
from ..runs.run import Results, Run
from ..runs.trained_on import find_data
from . import decoding, likelihood
from .likelihood import Sentence
from .task import Batch, D, ScoringJob, Task

if TYPE_CHECKING:
    import numpy as np

    from .loading import Loaded

AVERAGED = "averaged"


def inputs(job: ScoringJob[Any], model: str) -> list[Path]:
    """Return the files that the outputs of a model depend on."""
    return [*job.averages.get(model, [job.run.last]), *job.data.inputs(job.subset)]


def conditions(job: ScoringJob[Any], blank: Collection[int] = ()) -> dict[str, Any]:
    """Return everything else that the NLL depends on. blank: indices of the blank sources"""
    return {"cpu": job.cpu, "form": job.data.form.form, "blank": sorted(blank)}


def decoding_settings(job: ScoringJob[Any]) -> dict[str, str | None]:
    """Return the settings of fairseq-generate as recorded in results.json."""
    return {**job.settings.decoding, "post-process": job.data.post_process}


def translate(job: ScoringJob[Any], model: str, lock: int | None = None, blank: Collection[int] = ()) -> list[str]:
    """Return the outputs of one model, reusing RUN/decode if the inputs and settings have not changed.

    blank: indices of the blank sources, whose translations are empty; fairseq would invent some
    Raises: ChildProcessError if fairseq-generate fails or skips a sentence.
    """
    log, file, note = (job.decoded(model, kind) for kind in ("log", "hyp", "json"))

    def decode() -> list[str]:
        data, settings = job.data, job.settings.decoding
        command = decoding.generate_command(
            data.path, job.checkpoint(model), job.subset, data.post_process, job.cpu, settings, job.task_flags
        )
        count = len(data.references(job.subset))
        decoding.decode(command, log, lock, count)
        lines = [data.form.restore(line) for line in decoding.read_hypotheses(log)]
        if len(lines) != count:
            reference = data.reference(job.subset)
            raise ChildProcessError(f"{log}: {len(lines)} hypotheses, but {reference} has {count} lines")
        lines = ["" if number in blank else line for number, line in enumerate(lines)]
        write_text(file, "".join(f"{line}\n" for line in lines))
        return lines

    settings = {**decoding_settings(job), **conditions(job, blank)}
    return reuse(file, note, inputs(job, model), read_lines, decode, settings)


def data_of(run: Run, results: Results) -> Path:
    """Return the data folder named in results; if that path does not exist, find it as evaluation does."""
    named = Path(results.data)
    if named.is_dir() or not run.last.is_file():
        return named
    from ..fairseq_patches.loading import load_checkpoint  # imports torch

    return find_data(run, load_checkpoint(run.last))


class TextTask(Task[D]):
    """A task whose models generate text. The averages and the last checkpoint are scored."""

    def nll(self, job: ScoringJob[D], model: str) -> float:
        file, note = (job.decoded(model, kind) for kind in ("nll", "nll.json"))

        def measure() -> list[Sentence]:
            sentences = likelihood.measure_nll(job, job.checkpoint(model))
            Sentence.write(file, sentences)
            return sentences

        return likelihood.mean(reuse(file, note, inputs(job, model), Sentence.read, measure, conditions(job)))

    def fits(self, loaded: Loaded, subset: str) -> np.ndarray:
        import numpy as np

        dataset, longest = loaded.task.dataset(subset), loaded.model.max_positions()
        found: np.ndarray = np.asarray(dataset.src_sizes) <= longest[0]
        return found & (np.asarray(dataset.tgt_sizes) <= longest[1])

    def batches(self, loaded: Loaded, subset: str, chosen: list[int], max_tokens: int) -> Iterator[Batch]:
        from .batches import batches  # imports torch

        return batches(loaded, subset, chosen, max_tokens)
