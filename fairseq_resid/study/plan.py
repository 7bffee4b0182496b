"""The plan of a study: which runs it needs and in which order, fixed before the first run. Reads and checks STUDY.yaml.

A study compares arms (structures with their options) in settings (such as depths). Each arm has several seeds.
Optionally, one flag is tuned first, in the same way for every arm in every setting: each value of a grid is tried in
one run, usually a shorter one, with a seed that only tuning uses. The value with the lowest validation NLL of the
averaged checkpoint is chosen (for images, of the last checkpoint). If the best value is at the edge of the tried range,
the next value beyond it is tried too, within the bounds of the tuning.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct, field

from .. import records
from ..data import folders
from ..ops import FORMER
from ..runs import recipe, settings
from ..runs.request import place_data, request
from ..runs.run import Numbering
from ..runs.trained_on import share_splits
from ..runs.training_command import BACKEND, TrainingCommand
from ..scoring import kinds
from ..scoring.task import Task

LENGTHS = ("--max-epoch", "--max-update")
LOWER = 3  # number of values to try below the grid if all its values diverge
LEAST_FACTOR = 1.01  # with a factor closer to 1, tuning might never end
# fairseq flags that expect a file or a folder.
FILE_FLAGS = {
    *("--restore-file", "--finetune-from-model", "--continue-once", "--user-dir", "--save-dir", "--log-file"),
    *("--tensorboard-logdir", "--encoder-embed-path", "--decoder-embed-path"),
}
# Initial biases of sas's gates. Before version 1.0, they were 0 in translation and captioning models, and not recorded.
GATES = ("--sas-alpha-bias", "--sas-beta-bias")
GATE_STARTS, FORMER_GATE_STARTS = ("3", "-3"), ("0", "0")
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class Tuning(Struct, frozen=True, forbid_unknown_fields=True):
    """How a flag is tuned.

    seed: seed of all tuning runs; length: length of a tuning run as a fraction of a full run
    average: number of last checkpoints to average
    factor: ratio between the next value beyond the edge and the value at the edge (its inverse at the lower edge)
    least, most: bounds on the values beyond the grid
    setting: the only setting in which the flag is tuned; the others use the values chosen there. By default, the flag
        is tuned in every setting
    """

    flag: str
    grid: Annotated[tuple[Positive, ...], Meta(min_length=2)]
    seed: Annotated[int, Meta(ge=0)]
    length: Annotated[float, Meta(gt=0, le=1)] = 0.5
    average: Count = 5
    factor: Annotated[float, Meta(ge=LEAST_FACTOR)] = 2.0
    least: float = 0.0
    most: float = math.inf
    setting: str = ""

    def tuned_in(self, setting: str) -> str:
        """Return the setting in which the flag is tuned for a setting."""
        return self.setting or setting


def rounded(value: float) -> float:
    """Return a value of the tuned flag as flags and names of runs contain it: with six significant digits."""
    return float(f"{value:g}")


class PlanStep(Struct, frozen=True, forbid_unknown_fields=True):
    """A comparison of arms in a setting, with the seeds 1 to `seeds`; with 0 seeds the arms are only tuned.

    at: the value of the tuned flag: "own" (each arm's best), "baseline" (the baseline's best for all), or a number
    """

    setting: str
    arms: tuple[str, ...]
    seeds: Annotated[int, Meta(ge=0)]
    at: Literal["own", "baseline"] | Positive = "own"

    @property
    def fixed(self) -> float | None:
        """The value of the tuned flag that the plan fixes; None if tuning chooses it."""
        return None if isinstance(self.at, str) else rounded(self.at)

    @property
    def label(self) -> str:
        """The name of this choice in results: own, baseline, or the value."""
        return str(self.at) if self.fixed is None else f"{self.fixed:g}"


class Study(Struct, frozen=True, forbid_unknown_fields=True):
    """A study file.

    recipe: a recipe's name or file; data: a data folder to use instead of the recipe's
    flags: flags of all runs; arms, settings: their flags, by name; baseline: the arm that the others are compared with
    measure: NLL or BLEU for translation, CIDEr for captions, error for images; to be fixed before the runs
    tests: the test sets, scored together; or test sets by measure
    epochs: first and last epoch of an additional average, or a list of such pairs, scored for every run that trains
        longer
    average: number of last checkpoints to average, for translation; analyze: number of seeds per arm to analyse
    plan: the comparisons, most important first
    contrasts: further comparisons on all seeds of each group, "SETTING ARM [VALUE]": the first minus the second, or
        with four groups, the first minus the second, minus the same difference of the third and fourth. A group of
        another study file in the same folder, OTHER.yaml, is "OTHER/SETTING ARM [VALUE]"
    """

    title: str
    recipe: str
    arms: dict[str, str]
    baseline: str
    plan: tuple[PlanStep, ...]
    data: str = ""
    flags: str = ""
    settings: dict[str, str] = field(default_factory=lambda: {"recipe": ""})
    measure: str = "NLL"
    tests: tuple[str, ...] | dict[str, tuple[str, ...]] = ("test",)
    average: Count = 10
    epochs: tuple[int | tuple[int, int], ...] = ()
    analyze: Annotated[int, Meta(ge=0)] = 0
    tuning: Tuning | None = None
    contrasts: tuple[tuple[str, ...], ...] = ()

    @property
    def task(self) -> Task[Any]:
        return kinds.of_measure(self.measure)

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """The first and last epoch of each additional average; none if `epochs` is neither a pair nor pairs."""
        numbers = [one for one in self.epochs if isinstance(one, int)]
        pairs = [one for one in self.epochs if not isinstance(one, int)]
        if numbers and not pairs and len(numbers) == 2:
            return ((numbers[0], numbers[1]),)
        return () if numbers else tuple(pairs)

    def tests_of(self, measure: str) -> tuple[str, ...]:
        return self.tests[measure] if isinstance(self.tests, dict) else self.tests

    @property
    def all_tests(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(test for measure in self.task.studied.measures for test in self.tests_of(measure)))

    def averaged(self, is_tuning: bool) -> int:
        """Return the number of last checkpoints to average."""
        return self.tuning.average if is_tuning and self.tuning else self.average

    def __post_init__(self) -> None:
        for name in (*self.arms, *self.settings):  # they become parts of file names
            if not re.fullmatch(r"[\w+=-]+", name):
                raise ValueError(f"{name!r}: names of arms and settings may only contain letters, digits and _ + - =")
        if self.measure not in kinds.measures():
            raise ValueError(f"measure: {self.measure}: must be {' or '.join(kinds.measures())}")
        if self.baseline not in self.arms:
            raise ValueError(f"baseline: {self.baseline}: no such arm; choose from {', '.join(self.arms)}")
        if isinstance(self.tests, dict) and self.tests.keys() != self.task.studied.measures.keys():
            needed = " and ".join(self.task.studied.measures)
            raise ValueError(f"tests: {', '.join(self.tests)}: must be one list for each of {needed}")
        for measure in self.task.studied.measures:
            tests = self.tests_of(measure)
            if not tests or len(set(tests)) < len(tests):
                raise ValueError(f"tests: {', '.join(tests) or 'no test set'}: must be one or more different test sets")
        if bool(self.epochs) != bool(self.windows) or not all(1 <= first <= last for first, last in self.windows):
            raise ValueError(
                f"epochs: {', '.join(map(str, self.epochs))}: must be two epochs in order, such as [41, 50], or a "
                "list of such pairs"
            )
        tuning = self.tuning
        if tuning is not None and tuning.setting and tuning.setting not in self.settings:
            raise ValueError(f"tuning: setting: {tuning.setting}: choose from {', '.join(self.settings)}")
        for number, step in enumerate(self.plan, start=1):
            if step.setting not in self.settings:
                choices = ", ".join(self.settings)
                raise ValueError(f"plan, {number}: setting {step.setting}: no such setting; choose from {choices}")
            if strange := [arm for arm in step.arms if arm not in self.arms]:
                raise ValueError(f"plan, {number}: arm {strange[0]}: no such arm; choose from {', '.join(self.arms)}")
            if step.at != "own" and tuning is None:
                raise ValueError(f"plan, {number}: at: {step.at}: needs `tuning`, which the study does not have")
            if tuning is not None and tuning.seed in range(1, step.seeds + 1):
                raise ValueError(f"tuning: seed: {tuning.seed}: plan, {number} uses this seed too; choose another")
        for number, contrast in enumerate(self.contrasts, start=1):
            if len(contrast) not in (2, 4):
                raise ValueError(f"contrasts, {number}: {len(contrast)} groups: must be 2 or 4")


class Group(NamedTuple):
    """The runs of an arm in a setting at one value of the tuned flag.

    value: None without tuning and, in a contrast, for the arm's own best value; study: "" if it is the same
    """

    setting: str
    arm: str
    value: float | None
    study: str = ""


@dataclass(frozen=True)
class Planned:
    """A run of a study. value: value of the tuned flag, None without tuning; is_tuning: whether it is a tuning run."""

    setting: str
    arm: str
    value: float | None
    seed: int
    is_tuning: bool = False

    @property
    def name(self) -> str:
        value = "" if self.value is None else f".{self.value:g}"
        return f"{self.setting}.{self.arm}{value}.{'tuning' if self.is_tuning else f'seed{self.seed}'}"


def read_study(path: Path) -> Study:
    """Read a study file.

    Raises: ValueError naming the file and the invalid entry; OSError.
    """
    study = records.read(path, Study)
    others = {name: records.read(file, Study) for name, file in other_files(study, path).items()}
    for name, other in others.items():
        if difference := difference_in_scoring(study, other):
            raise ValueError(f"{path}: contrasts: {name}: {difference}")
    for number, contrast in enumerate(study.contrasts, start=1):
        for text in contrast:
            name, rest = study_and_group(text)
            try:
                group(others[name] if name else study, rest)
            except ValueError as error:
                raise ValueError(f"{path}: contrasts, {number}: {text}: {error}") from None
    return study


def study_and_group(text: str) -> tuple[str, str]:
    """Split a group of a contrast into the name of its study, "" for the same study, and "SETTING ARM [VALUE]"."""
    name, _, rest = text.rpartition("/")
    return name, rest


def other_files(study: Study, path: Path) -> dict[str, Path]:
    """Return the files of the other studies whose runs appear in the contrasts, by name."""
    texts = (text for contrast in study.contrasts for text in contrast if "/" in text)
    names = dict.fromkeys(study_and_group(text)[0] for text in texts)
    return {name: path.parent / f"{name}.yaml" for name in names}


def difference_in_scoring(study: Study, other: Study) -> str:
    """Return why the runs of another study cannot appear in a study's contrasts; "" if they can."""
    if other.task is not study.task:
        return f"measure: {other.measure}: must be {' or '.join(study.task.studied.measures)}"
    if study.task.has_averages and other.average != study.average:
        return f"average: {other.average}: must be {study.average}"
    for measure in study.task.studied.measures:
        if lacking := [test for test in study.tests_of(measure) if test not in other.tests_of(measure)]:
            return f"tests: {', '.join(other.tests_of(measure))}: must include {', '.join(lacking)}"
    mine, theirs = (" ".join(recipe.evaluation(one.recipe)) or "no flags" for one in (study, other))
    return "" if mine == theirs else f"evaluation flags of its recipe: {theirs}: must be {mine}"


def group(study: Study, text: str) -> Group:
    """Parse a group of a contrast, "SETTING ARM [VALUE]", into a group of runs.

    Raises: ValueError if the plan has no such runs.
    """
    words = text.split()
    planned = dict.fromkeys((step.setting, arm) for step in study.plan for arm in step.arms)
    if len(words) not in ((2, 3) if study.tuning else (2,)) or (words[0], words[1]) not in planned:
        shape = "SETTING ARM [VALUE]" if study.tuning else "SETTING ARM"
        raise ValueError(f"must be {shape}; the plan has {', '.join(map(' '.join, planned))}")
    value = rounded(float(words[2])) if words[2:] else None
    steps = [step for step in study.plan if step.seeds and step.setting == words[0] and words[1] in step.arms]
    fixed = [step.fixed for step in steps if step.fixed is not None]
    if study.tuning is not None and steps and len(fixed) == len(steps):  # tuning chooses no value of these runs
        if value is None and len(set(fixed)) == 1:
            value = fixed[0]
        if value not in fixed:
            allowed = " or ".join(f"{each:g}" for each in dict.fromkeys(fixed))
            raise ValueError(f"the plan runs {words[1]} in {words[0]} at {allowed} only; add one of these values")
    return Group(words[0], words[1], value)


def arguments(study: Study, run: Planned) -> tuple[str, list[str]]:
    """Return the architecture of a run, and its flags in addition to the recipe's.

    Raises: ValueError naming the missing or invalid flag.
    """
    own = shlex.split(" ".join([study.flags, study.settings[run.setting], study.arms[run.arm]]))
    given = TrainingCommand.parse([*recipe.read(study.recipe), *own])
    arch = given.value("--arch", "")
    if not arch:
        raise ValueError(f"arm {run.arm}: no architecture; add --arch to the arm or to `flags`")
    tuning, flags = study.tuning, TrainingCommand.parse(own)
    if flags.value(BACKEND, "") in FORMER:  # of a study older than version 1.1
        flags = flags.without([BACKEND])
    for flag, entry in {"--seed": "plan", **({tuning.flag: "tuning"} if tuning else {})}.items():
        if flag in flags:
            raise ValueError(f"{flag}: set by `{entry}`; remove it from the arm, the setting and `flags`")
    extra = TrainingCommand(study.data).and_then(flags.without(["--arch"])).arguments
    if run.is_tuning and tuning is not None:
        lengths = [flag for flag in LENGTHS if flag in given]
        if not lengths:
            raise ValueError(f"tuning: length: the recipe has neither {' nor '.join(LENGTHS)}")
        for flag in lengths:
            extra += [flag, str(math.ceil(given.integer(flag) * tuning.length))]
        if study.task.has_averages:
            extra += ["--keep-interval-updates", str(tuning.average)]
    if run.value is not None and tuning is not None:
        extra += [tuning.flag, f"{run.value:g}"]
    return arch, [*extra, "--seed", str(run.seed)]


def flags_of(study: Study, run: Planned) -> TrainingCommand:
    """Return all flags of a run that do not depend on the machine, including the recipe's.

    Raises: ValueError naming the missing or invalid flag, or one that names a file.
    """
    arch, extra = arguments(study, run)
    base, own = place_data(recipe.read(study.recipe), arch, extra)
    found = base.and_then(TrainingCommand.parse(["--arch", arch])).and_then(own)
    check_paths(found)
    return with_gate_starts(found, GATE_STARTS)


def with_gate_starts(given: TrainingCommand, starts: tuple[str, str]) -> TrainingCommand:
    """Return a command of `sas` for translation or captions that states the initial biases of the gates.

    The other commands are returned unchanged: the default for images has always been 3 and -3.
    """
    arch = given.value("--arch", "")
    residual = given.value("--residual", "sas" if "_sas" in arch else "")
    if residual != "sas" or not arch.startswith(("transformer_", "captioning_")):
        return given
    return replace(given, flags=(*((flag, (start,)) for flag, start in zip(GATES, starts, strict=True)), *given.flags))


def check_study(study: Study, path: Path) -> None:
    """Check all flags of the study with fairseq's own parser.

    Raises: ValueError naming the file, the arm, the setting, and the flag.
    """
    value = study.tuning.grid[0] if study.tuning else None
    for setting, arm in dict.fromkeys((step.setting, arm) for step in study.plan for arm in step.arms):
        for is_tuning in (False, True) if study.tuning else (False,):
            run = Planned(setting, arm, value, 1, is_tuning)
            try:
                flags_of(study, run)
                requested = request(study.recipe, *arguments(study, run), Path("unused"))
                check_kind(requested.command, study.measure)
                if study.task.has_averages:
                    by = settings.parse(requested.evaluate).by
                    check_average(requested.command, study.averaged(is_tuning), by)
                    check_windows(requested.command, () if is_tuning else study.windows)
                check_tests(requested.command, study.all_tests, is_tuning)
            except ValueError as error:
                raise ValueError(f"{path}: {arm} in {setting}: {error}") from None


def check_paths(given: TrainingCommand) -> None:
    """Raise ValueError for a flag of a study file or its recipe that names a file: a study reads only its data."""
    for flag, values in given.flags:
        for value in values:
            if flag in FILE_FLAGS or "/" in value or value.startswith("~"):
                raise ValueError(f"{flag} {value}: names a file; a study reads only its data folder")


def check_kind(command: TrainingCommand, measure: str) -> None:
    """Raise ValueError if the measure does not fit the recipe's task."""
    name = command.value("--task", folders.TEXT.task)
    task = kinds.of_name(name)
    if kinds.of_measure(measure) is not task:
        allowed = [each for each in kinds.measures() if kinds.of_measure(each) is task]
        raise ValueError(f"measure: {measure}: the recipe's task is {name}; its measure is {' or '.join(allowed)}")


def check_average(command: TrainingCommand, count: int, by: Numbering | None = None) -> None:
    """Raise ValueError if a training run keeps fewer numbered checkpoints than the average needs, or two kinds of them.

    by: the kind that the recipe selects
    """
    has_updates = command.integer("--save-interval-updates") > 0
    if has_updates and "--no-epoch-checkpoints" not in command and by is None:
        raise ValueError(
            "average: the run saves epoch- and update-numbered checkpoints; add --no-epoch-checkpoints, or --by epoch "
            "or update to [evaluate] in the recipe"
        )
    is_by_update = by == "update" or (by is None and has_updates)
    for flag in ("--keep-interval-updates",) if is_by_update else ("--keep-last-epochs", "--max-epoch"):
        if 0 < command.integer(flag) < count:  # for fairseq, -1 and 0 mean no limit
            raise ValueError(f"average: {count}, but {flag} {command.integer(flag)} keeps fewer checkpoints")


def check_windows(command: TrainingCommand, windows: Sequence[tuple[int, int]]) -> None:
    """Raise ValueError if a training run deletes checkpoints of an additional average before it ends."""
    longest = command.integer("--max-epoch") or math.inf
    for first, last in windows:
        for flag in ("--keep-interval-updates", "--keep-last-epochs"):
            if longest > last and command.integer(flag) > 0:
                raise ValueError(f"epochs: {first}, {last}: {flag} deletes their checkpoints; set it to -1")


def check_tests(command: TrainingCommand, tests: Sequence[str], is_tuning: bool = False) -> None:
    """Raise ValueError if a run trains on its evaluation data, or its data folder exists but lacks a split."""
    trained = command.value("--train-subset", "train")
    judged = (*tests, "valid") if is_tuning else tests
    if wrong := [subset for subset in judged if share_splits(subset, trained)]:
        what = "tuning" if wrong[0] == "valid" else "tests"
        raise ValueError(f"{what}: {wrong[0]}: is in --train-subset too; never train on evaluation data")
    data = Path(command.data)
    if missing := folders.of_folder(data).missing_split(data, ("valid", *tests)):
        raise ValueError(f"tests: {missing}")


# --------------------------------------------------------------------------------------------------------- next runs


@dataclass(frozen=True)
class Choice:
    """The state of tuning for an arm in a setting: NLL by value, values still to try, and the best value if known.

    If there is neither a value to try nor a best value, training diverges at every value.
    """

    tried: dict[float, float]
    to_try: tuple[float, ...]
    best: float | None


def choose_value(tuning: Tuning, tried: Mapping[float, float]) -> Choice:
    """Return the best of the tried values, or the values that must be tried first.

    tried: NLL by value; infinite if training failed
    """
    known = {value: tried[value] for value in sorted(tried)}
    if to_try := tuple(value for value in map(rounded, tuning.grid) if value not in known):
        return Choice(known, to_try, None)
    best = min(known, key=lambda value: known[value])
    values = list(known)
    if not math.isfinite(known[best]):
        lower = values[0] / tuning.factor
        is_tried = values[0] <= min(tuning.grid) / tuning.factor**LOWER
        return Choice(known, () if is_tried or lower < tuning.least else (rounded(lower),), None)
    beyond = {values[0]: values[0] / tuning.factor, values[-1]: values[-1] * tuning.factor}.get(best)
    if beyond is not None and tuning.least <= beyond <= tuning.most:
        return Choice(known, (rounded(beyond),), None)
    return Choice(known, (), best)


def choices(study: Study, nll: Mapping[Planned, float]) -> dict[tuple[str, str], Choice]:
    """Return the state of tuning for every arm in every setting of the plan. nll: NLL of the finished runs."""
    if study.tuning is None:
        return {}
    found = {}
    for setting, arm in dict.fromkeys((step.setting, arm) for step in study.plan for arm in _tuned(study, step)):
        tried = {
            run.value: value
            for run, value in nll.items()
            if run.is_tuning
            and (run.setting, run.arm) == (study.tuning.tuned_in(setting), arm)
            and run.value is not None
        }
        found[setting, arm] = choose_value(study.tuning, tried)
    return found


def _tuned(study: Study, step: PlanStep) -> tuple[str, ...]:
    """Return the arms that must be tuned before a step."""
    if study.tuning is None or step.fixed is not None:
        return ()
    return step.arms if step.at == "own" else (study.baseline,)


def value_of(study: Study, step: PlanStep, arm: str, known: Mapping[tuple[str, str], Choice]) -> float | None:
    """Return the value of the tuned flag for an arm in a step; None without tuning, or if it is not known yet."""
    if study.tuning is None or step.fixed is not None:
        return step.fixed
    return known[step.setting, arm if step.at == "own" else study.baseline].best


def runs(study: Study, nll: Mapping[Planned, float]) -> Iterator[Planned]:
    """Yield every run that is known to be needed, each once, in the order of the plan. nll: NLL of the finished runs.

    The runs of a step are unknown until its tuning is complete; the runs of later steps are still yielded.
    """
    known = choices(study, nll)
    found: list[Planned] = []
    for step in study.plan:
        if study.tuning is not None:
            for arm in _tuned(study, step):
                choice = known[step.setting, arm]
                found += [
                    Planned(study.tuning.tuned_in(step.setting), arm, value, study.tuning.seed, True)
                    for value in (*choice.tried, *choice.to_try)
                ]
        for seed, arm in product(range(1, step.seeds + 1), step.arms):
            value = value_of(study, step, arm, known)
            if study.tuning is None or value is not None:
                found.append(Planned(step.setting, arm, value, seed))
    yield from dict.fromkeys(found)


def undetermined_runs(study: Study, nll: Mapping[Planned, float]) -> int:
    """Return the number of runs that are not determined yet because tuning has not chosen their value."""
    known = choices(study, nll)
    unknown = {
        (step.setting, step.at, arm, seed)
        for step in study.plan
        if study.tuning is not None and step.fixed is None
        for arm, seed in product(step.arms, range(1, step.seeds + 1))
        if known[step.setting, arm if step.at == "own" else study.baseline].to_try
    }
    return len(unknown)
