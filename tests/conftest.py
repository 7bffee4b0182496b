"""Fixtures that all tests share: a tiny corpus, and fairseq's commands run inside this process.

Starting fairseq takes seconds per process, so `cli` calls a command's own main function. Nothing here imports fairseq
before a test requests it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import math
import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# This is set before torch is imported and overrides the shell's value, because the tests share their machine and the
# order of summation must not depend on the number of threads. Workers and the commands that tests start inherit the
# variable.
os.environ["OMP_NUM_THREADS"] = "1"

# Archives of studies are unpacked here instead of in the home folder.
os.environ["FAIRSEQ_RESID_CACHE"] = str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "fairseq_resid")

# cuBLAS is only deterministic with this setting.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch

from support import complete, core

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# No count is a multiple of 8, so that a test fails if fairseq-fixed drops the last batch.
SENTENCES = {"train": 301, "valid": 43, "test": 203}
DETERMINERS = {"the": "la", "a": "ke", "every": "omna", "this": "tiu"}
ADJECTIVES = {"red": "ruga", "old": "olda", "quick": "rapi", "small": "etta", "wise": "saga", "wet": "umi"}
NOUNS = {"fox": "vulpo", "king": "rego", "river": "flumo", "ship": "navo", "wolf": "lupo", "bird": "birdo"}
VERBS = {"sees": "vidas", "follows": "sekvas", "finds": "trovas", "loves": "amas", "fears": "timas"}

# The parts of the tests' names that run first, the longest first.
LONGEST = ("test_readme.py", "test_new_structure.py", "test_wheel.py", "tests/system/", "tests/runs/")

# fairseq's own model at the size of our _tiny architectures.
STOCK = shlex.split("""
    --arch transformer --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 64 --encoder-ffn-embed-dim 128
    --encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.1
""")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", action="store_true", help="run only the core tests, as scripts/test.sh does")
    text = "skip tests that have not started by this time, in seconds since 1970"
    parser.addoption("--until", metavar="SECONDS", type=float, default=math.inf, help=text)
    text = (
        "run the tests that every structure must pass, for this structure only; can be repeated; FILE: the test file "
    )
    text += "of a structure of another package"
    parser.addoption("--structure", metavar="NAME[=FILE]", action="append", default=[], help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Require that every test finishes, select the structures, and ignore warnings about fairseq's own code."""
    complete.pytest_configure(config)
    if chosen := config.getoption("--structure"):
        from support import structures

        names = structures.select(chosen)
        config.args += [str(structures.file_of(name)) for name in names if not structures.is_ours(name)]
    config.addinivalue_line("filterwarnings", "ignore:.*torch.jit.(script|script_method). is deprecated")
    for text in ("version_base", "'config' is validated", "strict flag", "deprecated keyword", "hydra.experimental"):
        config.addinivalue_line("filterwarnings", rf"ignore:[\s\S]*{text}:UserWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*(find_module|find_loader|load_module)")
    config.addinivalue_line("filterwarnings", "ignore:torch.ao.quantization is deprecated")
    config.addinivalue_line("filterwarnings", "ignore:torch.quantize_per_tensor, :UserWarning")
    config.addinivalue_line("filterwarnings", "ignore:Using .*non-full backward hook:FutureWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*torch.cuda.amp.autocast:FutureWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*(pin_memory|mismatched key_padding_mask):UserWarning")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --core, skip test files that are not core tests."""
    if not config.getoption("--core") or collection_path.suffix != ".py":
        return None
    return None if core.is_core(collection_path) else True


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the core tests as `core`, and the tests in the test files of structures as `once`."""
    if core.is_core(item.path):
        item.add_marker(pytest.mark.core)
    if item.path.parent == ROOT / "tests" / "structures":
        item.add_marker(pytest.mark.once)  # needs only torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that have not started by --until."""
    if time.time() > item.config.getoption("--until"):
        pytest.skip("out of time (--until)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `long` unless -m names this mark, and with --core also tests marked `slow`.

    With --structure, deselect all tests that do not belong to these structures.
    The longest tests run first, so that no worker waits for another one at the end.
    """
    if chosen := config.getoption("--structure"):
        from support import structures

        own = [structures.file_of(one.partition("=")[0]) for one in chosen]
        kept = [item for item in items if item.get_closest_marker("structures") or item.path in own]
        if not all(file.is_file() for file in own):
            kept = [item for item in items if item.name == "test_every_structure_has_its_test_file"]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    marks = [] if "long" in config.getoption("markexpr") else ["long"]
    marks += ["slow"] if config.getoption("--core") else []
    if left_out := [item for item in items if any(map(item.get_closest_marker, marks))]:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: next((n for n, part in enumerate(LONGEST) if part in item.nodeid), len(LONGEST)))


def sentence_pair(choose: random.Random) -> tuple[str, str]:
    """Return an English clause and its translation: adjectives after their noun, the verb last."""

    def phrase() -> tuple[str, str]:
        determiner, noun = choose.choice(list(DETERMINERS)), choose.choice(list(NOUNS))
        adjectives = choose.sample(list(ADJECTIVES), k=choose.randint(0, 2))
        source = " ".join([determiner, *adjectives, noun])
        return source, " ".join([DETERMINERS[determiner], NOUNS[noun], *(ADJECTIVES[word] for word in adjectives)])

    subject, object_, verb = phrase(), phrase(), choose.choice(list(VERBS))
    return f"{subject[0]} {verb} {object_[0]} .", f"{subject[1]} {object_[1]} {VERBS[verb]} ."


def write_corpus(folder: Path) -> dict[str, Path]:
    """Write the raw text as FOLDER/{train,valid,test}.{en,xx}; return the prefix of each split."""
    folder.mkdir(parents=True, exist_ok=True)
    choose = random.Random(7)
    for split, count in SENTENCES.items():
        pairs = [sentence_pair(choose) for _ in range(count)]
        for side, language in enumerate(("en", "xx")):
            (folder / f"{split}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))
    return {split: folder / split for split in SENTENCES}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Limit torch to one thread, because the machine is shared and sums must not depend on the number of threads."""

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def fairseq_in_this_process() -> Iterator[None]:
    """Let preparation and evaluation in this process also run fairseq-preprocess and fairseq-generate here.

    A separate process takes seconds. Commands that tests start still use one, as they do for users.
    """
    from fairseq_resid.data.text import fairseq_preprocess
    from fairseq_resid.scoring import decoding
    from support.training_here import children_here

    with children_here(fairseq_preprocess, decoding):
        yield


@pytest.fixture(scope="session")
def raw_text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the prefix of each split of the tiny corpus's raw text, in en and xx. Tests must not write to it."""
    return write_corpus(tmp_path_factory.mktemp("raw"))


@pytest.fixture(scope="session")
def corpus(raw_text: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny corpus, binarised with a joined vocabulary of 90 pieces. Tests must not write to it."""
    from support.preparing import build

    data = tmp_path_factory.mktemp("corpus") / "data"
    with contextlib.redirect_stdout(io.StringIO()):
        assert build(raw_text, data) == 0
    return data


@dataclass(frozen=True)
class Result:
    """The outcome of a command: its exit code and all its output (stdout, stderr and log, in order)."""

    code: int
    output: str

    def lines(self, kind: str) -> dict[int, str]:
        """Return the lines that fairseq-generate marks with this letter, as {sentence id: rest of the line}."""
        marked = [line for line in self.output.splitlines() if line.startswith(kind + "-")]
        found = (line[len(kind) + 1 :].split("\t", 1) for line in marked)
        return {int(number): rest for number, rest in found if number.isdigit()}

    @property
    def hypotheses(self) -> dict[int, tuple[float, str]]:
        """Return the H- lines as {sentence id: (score, pieces or text)}."""
        parted = {number: rest.split("\t", 1) for number, rest in self.lines("H").items()}
        return {number: (float(score), text) for number, (score, text) in parted.items()}

    @property
    def error(self) -> str:
        """Return the last line of output, which is the error message of a refused command."""
        return self.output.strip().splitlines()[-1]


@contextlib.contextmanager
def fairseq_state_kept(text: io.StringIO) -> Iterator[None]:
    """Send fairseq's log to `text`; afterwards, restore everything that fairseq stores for the whole process."""
    from fairseq import checkpoint_utils
    from fairseq.logging import metrics
    from fairseq_cli.train import should_stop_early

    loggers = [logging.getLogger(), *(item for item in logging.Logger.manager.loggerDict.values())]
    before = {item: (list(item.handlers), item.level) for item in loggers if isinstance(item, logging.Logger)}
    handler = logging.StreamHandler(text)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    argv, stdin = sys.argv, sys.stdin
    try:
        yield
    finally:
        sys.argv, sys.stdin = argv, stdin
        for item in [root, *logging.Logger.manager.loggerDict.values()]:
            if isinstance(item, logging.Logger):
                handlers, level = before.get(item, ([], item.level))
                for extra in set(item.handlers) - set(handlers):
                    extra.close()
                item.handlers[:] = handlers
                item.setLevel(level)
        metrics.reset()
        vars(checkpoint_utils.save_checkpoint).clear()  # .best: the best loss so far
        vars(should_stop_early).clear()  # .best and .num_runs, for --patience


def run_fairseq(command: str, words: list[str], stdin: str = "") -> Result:
    """Run a fairseq command in this process."""
    main = importlib.import_module(command.replace("fairseq-", "fairseq_cli.")).cli_main
    text, code = io.StringIO(), 0
    with fairseq_state_kept(text), contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        sys.argv, sys.stdin = [command, *words], io.StringIO(stdin)
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
            if isinstance(exit_.code, str):
                print(exit_.code)
    return Result(code, text.getvalue())


@pytest.fixture(scope="session")
def cli() -> Callable[..., Result]:
    """Run a fairseq command in this process: `cli("fairseq-generate", data, "--path", file) -> Result`.

    It adds --user-dir and --cpu, and uses no worker processes. Unless `check=False`, a command that exits with a code
    other than 0 fails the test. Exceptions other than SystemExit are raised. `stdin` is the input to the command.
    """

    def run(command: str, *flags: object, stdin: str = "", check: bool = True) -> Result:
        workers = [] if command == "fairseq-interactive" else ["--num-workers", "0"]
        words = [*map(str, flags), "--user-dir", str(ROOT / "fairseq_resid"), "--cpu", *workers]
        result = run_fairseq(command, words, stdin)
        assert result.code == 0 or not check, result.output
        return result

    return run


@pytest.fixture(scope="session")
def train(corpus: Path, cli: Callable[..., Result]) -> Callable[..., Result]:
    """Train on the tiny corpus: `train(save_dir, *flags)`; flags override the defaults given here.

    The defaults are 4 updates of --arch transformer_resid_tiny on batches of 16. Only checkpoint_last.pt is saved.
    """
    defaults = shlex.split("""
        --arch transformer_resid_tiny --optimizer adam --adam-betas (0.9,0.98) --lr 0.005 --lr-scheduler inverse_sqrt
        --warmup-updates 4 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --share-all-embeddings
        --batch-size 16 --max-update 4 --disable-validation --no-epoch-checkpoints --log-format json --log-interval 1
    """)

    def run(save_dir: Path, *flags: object, without: tuple[str, ...] = (), **settings: Any) -> Result:
        kept = [word for word in defaults if word not in without]
        return cli("fairseq-train", corpus, *kept, "--save-dir", save_dir, *flags, **settings)

    return run


@pytest.fixture(scope="session")
def sas_checkpoint(train: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of a briefly trained transformer_sas_tiny with Adam's state. Tests must not write to it."""
    folder = tmp_path_factory.mktemp("sas")
    # Translations of an untrained model depend on rounding. After 50 updates, gates that start at 0 give a better one.
    starts = ["--sas-alpha-bias", 0, "--sas-beta-bias", 0]
    train(folder, "--arch", "transformer_sas_tiny", *starts, "--batch-size", 64, "--max-update", 50)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def stock_checkpoint(train: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of a briefly trained small stock `transformer` with Adam's state.

    Tests must not write to it.
    """
    folder = tmp_path_factory.mktemp("stock")
    train(folder, *STOCK, "--batch-size", 64, "--max-update", 50)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def generate(corpus: Path, cli: Callable[..., Result]) -> Callable[..., Result]:
    """Decode the tiny corpus's test set: `generate(checkpoint, *flags)`, with beam 4 unless a flag overrides it."""
    return functools.partial(_generate, cli, corpus)


def _generate(cli: Callable[..., Result], data: Path, checkpoint: object, *flags: object, **settings: Any) -> Result:
    shape = ["--beam", 4, "--lenpen", 0.6, "--max-len-a", 1, "--max-len-b", 8, "--batch-size", 64]
    return cli("fairseq-generate", data, "--path", checkpoint, *shape, *flags, **settings)
