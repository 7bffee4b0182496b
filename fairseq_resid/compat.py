"""What must be bridged in fairseq, each piece with the fact it answers. Of this package it imports the reader of files.

`apply()` is what `--user-dir fairseq_resid` runs: it changes fairseq in this process, for stock models too. Importing
this module changes nothing and does not need fairseq.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import errno
import functools
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch

from .folders import checkpoint

logger = logging.getLogger(__name__)

# How the message begins when loss or gradient are not finite; a study looks for it in the log.
DIVERGED = "the training diverged"


class UserError(ValueError, SystemExit):
    """A mistake of the user: one line on stderr and exit code 1 if nothing catches it; else a ValueError."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)
        self.code = f"fairseq_resid: error: {message}"


# --- loading checkpoints -------------------------------------------------------------------------------------------


def _named(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """Return `function` under its own name in another module."""

    def call(*args: Any) -> Any:
        return function(*args)

    # A function of its own per spelling: torch 2.5 looks an object up by __module__ and __name__ alone.
    call.__module__ = module
    call.__name__ = call.__qualname__ = function.__name__
    return call


@functools.cache
def _allowed_globals() -> tuple[Any, ...]:
    # What pickle itself calls to rebuild a numpy scalar and an array, without importing numpy's private modules.
    rebuild: list[Any] = [np.float64(0).__reduce__()[0], np.zeros(0).__reduce__()[0]]
    functions = [_named(call, f"{core}.multiarray") for core in ("numpy.core", "numpy._core") for call in rebuild]
    # Since numpy 1.25 these are numpy.dtypes.Float64DType and friends. No object and no void types: plain numbers.
    codes = "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]
    dtypes = dict.fromkeys(type(np.dtype(code)) for code in codes)
    return (argparse.Namespace, np.ndarray, np.dtype, *dtypes, *functions)


def allow_checkpoint_globals() -> None:
    """Let torch.load(weights_only=True) read what fairseq checkpoints hold beside tensors; none of it can run code.

    Their cfg holds an argparse.Namespace, their meters numpy scalars and, with --eval-bleu, numpy arrays. numpy 1
    writes its functions as numpy.core.multiarray.NAME, numpy 2 as numpy._core.multiarray.NAME: both are registered,
    so that a file written under one loads under the other. Calling this again changes nothing.
    """
    present = set(map(id, torch.serialization.get_safe_globals()))
    torch.serialization.add_safe_globals([item for item in _allowed_globals() if id(item) not in present])


# Names of config values that fairseq passes to Python's eval if they are strings (tests/test_compat.py compares
# the list with the sources of the installed fairseq).
EVALUATED = set(
    """
    adafactor_eps adam_betas adamax_betas adaptive_input_cutoff adaptive_softmax_cutoff character_filters
    conv_aggregator_layers conv_feature_layers decoder_attention decoder_layers decoder_xformers_att_config downsample
    encoder_attention encoder_layers encoder_xformers_att_config feature_encoder_spec gated_attention lamb_betas
    left_pad_source left_pad_target pipeline_balance pipeline_decoder_balance pipeline_decoder_devices
    pipeline_devices pipeline_encoder_balance pipeline_encoder_devices pretrained project_input self_attention
    wer_args xformers_att_config
    """.split()  # noqa: SIM905
)


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load a fairseq checkpoint as data, on the CPU, memory-mapped if its format allows it.

    Raises: ValueError naming the file if it is damaged, holds what is no data, or is none of fairseq's; OSError if it
    is not there.
    """
    require_file(path)
    with open(path, "rb") as file:
        state = checkpoint.read(file, str(path), is_mapped=True)
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError(f"{path}: not a fairseq checkpoint: it holds no 'model'")
    refuse_code(state, str(path))
    return state


def require_file(path: str | os.PathLike[str]) -> None:
    """Refuse what is there and is no file: opening a named pipe waits for ever.

    Raises: UserError naming it.
    """
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: cannot be loaded: it is not a regular file")


def check_finite(model: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Check the weights of a checkpoint.

    Raises: UserError naming the file and the first parameter that holds NaN or an infinite number.
    """
    for name, tensor in model.items():
        # fairseq saves the mark `_float_tensor` without ever setting it.
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or name.endswith("_float_tensor"):
            continue
        if not tensor.sum(dtype=torch.float64).isfinite():
            count = tensor.numel() - int(tensor.isfinite().sum())
            raise UserError(f"{path}: {name} holds {count:,} numbers of {tensor.numel():,} that are NaN or infinite")


LONGEST = 10_000  # characters of a setting that fairseq evaluates, and values that it may have


def _values(node: ast.AST) -> int:
    """Return how many values a literal has at most.

    Raises: ValueError for what is no literal.
    """
    if isinstance(node, ast.Constant):
        return len(node.value) if isinstance(node.value, (str, bytes)) else 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        return _values(node.operand)
    if isinstance(node, (ast.List, ast.Tuple)):
        return 1 + sum(map(_values, node.elts))
    if isinstance(node, ast.Dict):
        return 1 + sum(map(_values, filter(None, node.keys))) + sum(map(_values, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _values(node.left) + _values(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for times, what in ((node.left, node.right), (node.right, node.left)):
            if isinstance(times, ast.Constant) and isinstance(times.value, int):
                return max(times.value, 1) * _values(what)
    raise ValueError("no literal")


def is_literal(text: str) -> bool:
    """Return whether a Python expression is made of literals, containers and `+`, `*`, signs between them only.

    Its value is small too: `[0] * 10000000000` is none.

    >>> is_literal("(0.9, 0.98)"), is_literal("[(512, 3)] * 20"), is_literal("print(1)")
    (True, True, False)
    """
    if len(text) > LONGEST:
        return False
    try:
        return _values(ast.parse(text.strip(), mode="eval").body) <= LONGEST
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield every (name, value) in a tree of dicts, lists and namespaces."""
    if isinstance(config, argparse.Namespace):
        config = vars(config)
    if isinstance(config, dict):
        for name, value in config.items():
            yield str(name), value
            yield from _settings(value)
    elif isinstance(config, (list, tuple)):
        for value in config:
            yield "[]", value
            yield from _settings(value)


def is_plain(value: Any) -> bool:
    """Return whether a setting can be given to eval: a number, a literal in a string, or containers of these.

    eval takes bytes and arrays of bytes for code too, and weights-only loading lets both through.
    """
    if isinstance(value, str):
        return not value.strip() or is_literal(value)
    if isinstance(value, dict):
        return all(is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float))


def refuse_code(state: Any, path: str) -> None:
    """Refuse a checkpoint whose config holds something that fairseq or OmegaConf would evaluate.

    Data are no sandbox by themselves: fairseq calls eval on settings such as optimizer.adam_betas, and OmegaConf puts
    environment variables, or whole configs, in the place of `${oc.env:HOME}` and `${oc.create:...}`.

    Raises: UserError naming the file, the setting and its value.
    """
    if not isinstance(state, dict):
        raise UserError(f"{path}: not a fairseq checkpoint")
    for key, kind in (("cfg", dict), ("args", argparse.Namespace)):
        if not isinstance(state.get(key), (kind, type(None))):
            # OmegaConf.create, which fairseq gives it to, would read a string as YAML, past the check below.
            raise UserError(f"{path}: its {key} is a {type(state[key]).__name__}, not settings by name")
        for number, (name, value) in enumerate(_settings(state.get(key))):
            if number == MOST_SETTINGS:
                raise UserError(f"{path}: its {key} has more than {MOST_SETTINGS:,} settings")
            if name in EVALUATED and not is_plain(value):
                raise UserError(
                    f"{path}: its config has {name}={checkpoint.shown(value)}, which fairseq would run as code; "
                    "only literals (numbers, strings, lists, tuples, dicts, + and * between them) are accepted"
                )
            if any(isinstance(text, str) and RESOLVER.search(text) for text in (name, value)):
                raise UserError(
                    f"{path}: its config has {name[:80]}={checkpoint.shown(value)}, which OmegaConf would resolve"
                )
    if isinstance(state.get("model"), dict):
        for name, value in state["model"].items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                raise UserError(f"{path}: its model has {checkpoint.shown(name)}, which is no tensor")
    history = state.get("optimizer_history") or []
    if not isinstance(history, list) or not all(isinstance(part, dict) for part in history):
        raise UserError(f"{path}: its optimizer_history is no list of settings")
    if any(not isinstance(part.get("num_updates", 0), int) for part in history):
        raise UserError(f"{path}: its optimizer_history has a num_updates that is no number")


# Of fairseq's own configs a thousand, and all that it writes are resolved; a reference to another setting is harmless.
MOST_SETTINGS = 10_000
RESOLVER = re.compile(r"\$\{(?![\w.]+\})")
# Files that fairseq would read for start values, which the checkpoint's own weights replace.
START_VALUES = ("encoder_embed_path", "decoder_embed_path")


def forget_start_values(state: dict[str, Any]) -> None:
    """Take out of a config what names files of start values: they may be missing, another's, or endless."""
    for config in (*(state.get("cfg") or {}).values(), state.get("args")):
        settings = vars(config) if isinstance(config, argparse.Namespace) else config
        if isinstance(settings, dict):
            settings.update({name: None for name in START_VALUES if name in settings})


class _WeightsOnlyTorch(ModuleType):
    """torch, whose load reads data alone, and refuses configs with code in them and weights that are not finite."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def load(file: Any, *_: Any, **__: Any) -> Any:
        path = str(getattr(file, "name", file))
        try:
            # Not mapped: a training that goes on writes over the file.
            with open(path, "rb") as again:
                state = checkpoint.read(again, path)
        except (ValueError, OSError) as error:
            raise UserError(str(error)) from None
        refuse_code(state, path)
        forget_start_values(state)
        if isinstance(state.get("model"), dict):
            check_finite(state["model"], path)
        return state


@contextlib.contextmanager
def naming(*files: str) -> Iterator[None]:
    """Let what goes wrong with checkpoint files, in whatever way, be a UserError on one line that names them."""
    for file in files:
        require_file(file)
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())
        if isinstance(error, UserError) and said.startswith(tuple(f"{file}: " for file in files)):
            raise
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"{', '.join(files)}: cannot be loaded: {kind}{said[:500]}") from error


LOADERS = (
    "fairseq.checkpoint_utils",
    "fairseq.data.codedataset",
    "fairseq.models.speech_to_text.xm_transformer",
    "fairseq.models.text_to_speech.vocoder",
)


def load_weights_only() -> None:
    """Make fairseq's own checkpoint loading weights-only, on every torch, and let its errors name the file.

    torch < 2.6 (fairseq 0.12.2's) unpickles whatever a file says. fairseq/checkpoint_utils.py is where all of train,
    generate, validate, interactive and hub load. Elsewhere torch.load is called for files that a config names: a
    checkpoint of such an architecture brings its config with it.
    """
    from fairseq import checkpoint_utils

    allow_checkpoint_globals()
    for name in LOADERS:
        vars(import_module(name))["torch"] = _WeightsOnlyTorch("torch")

    load_file, load_models = checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.load_model_ensemble_and_task

    @functools.wraps(load_file)
    def load_checkpoint_to_cpu(path, *args, **kwargs):  # type: ignore[no-untyped-def]
        with naming(path):
            state = load_file(path, *args, **kwargs)
            if not isinstance(state.get("model"), dict):
                raise UserError(f"{path}: not a fairseq checkpoint: it holds no 'model'")
            return state

    @functools.wraps(load_models)
    def load_model_ensemble_and_task(filenames, *args, **kwargs):  # type: ignore[no-untyped-def]
        with naming(*filenames):
            return load_models(filenames, *args, **kwargs)

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task


def name_misfits() -> None:
    """Let the trainer say which parameters of a checkpoint do not fit, and what is no file.

    Trainer.load_checkpoint replaces every error of load_state_dict by "please ensure that the architectures match", and
    begins anew where it finds no regular file.
    """
    from fairseq.trainer import Trainer

    original = Trainer.load_checkpoint

    @functools.wraps(original)
    def load_checkpoint(self, filename, *args, **kwargs):  # type: ignore[no-untyped-def]
        with naming(filename):
            try:
                return original(self, filename, *args, **kwargs)
            except Exception as error:
                if type(error) is Exception and error.__context__:  # "please ensure ..."
                    raise error.__context__ from None
                raise

    Trainer.load_checkpoint = load_checkpoint


def say_what_runs() -> None:
    """Let the trainer log which LayerNorm and which optimizer run.

    fairseq takes those of NVIDIA's apex wherever it can import them beside a GPU, and says so of Adam alone: two
    measurements, or two trainings, can differ by what happens to be installed.
    """
    from fairseq.trainer import Trainer

    original = Trainer._build_optimizer

    @functools.wraps(original)
    def _build_optimizer(self):  # type: ignore[no-untyped-def]
        original(self)
        norms = Counter(type(module) for module in self.model.modules() if hasattr(module, "normalized_shape"))
        kinds = ", ".join(f"{count} {kind.__module__}.{kind.__qualname__}" for kind, count in norms.items())
        optimizer = type(self._optimizer.optimizer)
        logger.info(f"layer norms: {kinds or 'none'}; optimizer: {optimizer.__module__}.{optimizer.__qualname__}")

    Trainer._build_optimizer = _build_optimizer


def name_divergence() -> None:
    """Let a training end in one line if its loss or its gradient is not finite; the model may know a remedy.

    Trainer.train_step then searches for the first bad module with NanDetector. Under its hooks, torch looks for a
    tensor among the values of the dict that a Transformer's encoder returns, which are lists: a bare StopIteration.
    Several GPUs report a gradient that is not finite as one that is "inconsistent between workers".
    """
    from fairseq.trainer import Trainer

    original = Trainer.train_step

    @functools.wraps(original)
    def train_step(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        try:
            return original(self, *args, **kwargs)
        except (FloatingPointError, StopIteration) as error:
            cause = error.__context__ if isinstance(error, StopIteration) else error
            if not isinstance(cause, FloatingPointError):
                raise
            if "inconsistent" in str(cause) and not re.search(r"= -?(nan|inf)", str(cause)):
                raise cause from None  # finite, and not the same everywhere
            advice = getattr(self.get_model(), "divergence_advice", lambda: "use a lower --lr")()
            raise UserError(
                f"{DIVERGED} at update {self.get_num_updates() + 1} (learning rate {self.get_lr():g}): "
                f"its loss or its gradient is not finite; {advice}"
            ) from cause

    Trainer.train_step = train_step


def skip_overflow_without_gpu() -> None:
    """Let a training in fp16 on a CPU go on after an overflow of its gradients, as one on a GPU does.

    After it, Trainer.train_step moves a zero that nothing reads to the GPU: without one, a traceback.
    """
    from fairseq.trainer import Trainer

    original = Trainer.train_step

    @functools.wraps(original)
    def train_step(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        try:
            return original(self, *args, **kwargs)
        except (AssertionError, RuntimeError) as error:  # of a torch without CUDA, and of one with it
            if self.cuda or not isinstance(error.__context__, OverflowError):
                raise
            self.zero_grad()  # all that is left to do
            return None

    Trainer.train_step = train_step


def unscale_once() -> None:
    """Let a training by --amp take whole steps.

    AMPOptimizer.clip_grad_norm unscales the gradients of torch's optimizer, and its step gives the scaler fairseq's
    wrapper of it, which the scaler takes for another one and unscales again: gradients are divided by the loss scale
    twice. Adam does not see it; SGD's steps are 1/128 as long, and less with every growth of the scale.
    """
    from fairseq.optim.amp_optimizer import AMPOptimizer

    def step(self):  # type: ignore[no-untyped-def]
        self.scaler.step(self.optimizer)
        self.scaler.update()

    AMPOptimizer.step = step


class _Stop:
    """What this process was asked, and what the processes of a training agreed on: the number of a signal, or 0."""

    asked = 0
    agreed = 0


def _ask(number: int, _: Any) -> None:
    if number == _Stop.asked == signal.SIGINT:
        raise KeyboardInterrupt  # Ctrl-C a second time
    if not _Stop.asked:
        _Stop.asked = number
        # A worker that reads data may end by the same signal, and is not needed for the update at hand.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _pass_on(number: int, _: Any) -> None:
    for process in multiprocessing.active_children():
        process.terminate()


@contextlib.contextmanager
def _answering(answer: Callable[[int, Any], None]) -> Iterator[None]:
    """Let `answer` take SIGINT, SIGTERM and SIGHUP, but for those that are ignored: under nohup, for example."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, answer)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def save_when_stopped() -> None:
    """Let SIGINT, SIGTERM and SIGHUP end a training behind the update at hand, with a checkpoint, as 128 + signal.

    fairseq-train ends at once, and what it did since its last checkpoint is lost. Several processes get a signal at
    different moments, or one of them alone: the numbers that they sum after every update take it along. Processes that
    fairseq starts itself, one for each GPU, get it from the one that waits for them.
    """
    import fairseq_cli.train as program
    from fairseq import checkpoint_utils
    from fairseq.distributed import utils as distributed
    from fairseq.trainer import Trainer

    train, validate_and_save = program.train, program.validate_and_save
    aggregate, call_main = Trainer._aggregate_logging_outputs, distributed.call_main

    @functools.wraps(aggregate)
    def aggregate_and_agree(self, outputs, *stats, **kwargs):  # type: ignore[no-untyped-def]
        outputs, (*stats, asked) = aggregate(self, outputs, *stats, float(_Stop.asked > 0), **kwargs)
        if asked:
            _Stop.agreed = _Stop.asked or signal.SIGTERM
        return outputs, stats

    @functools.wraps(validate_and_save)
    def save_and_stop(cfg, trainer, task, epoch_itr, *args, **kwargs):  # type: ignore[no-untyped-def]
        losses, is_last = validate_and_save(cfg, trainer, task, epoch_itr, *args, **kwargs)
        is_alone = trainer.data_parallel_world_size == 1
        if (stop := _Stop.asked if is_alone else _Stop.agreed) and not is_last:
            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, losses[0])
            logger.info(f"stopped by {signal.Signals(stop).name} after update {trainer.get_num_updates()}")
            if not is_alone:  # whoever waits for these processes ends all of them as soon as one has ended
                torch.distributed.barrier()
            raise SystemExit(128 + stop)
        return losses, is_last

    @functools.wraps(train)
    def train_until_stopped(*args, **kwargs):  # type: ignore[no-untyped-def]
        # Before the workers that read data are forked: they inherit it, and outlive a Ctrl-C.
        with _answering(_ask):
            try:
                return train(*args, **kwargs)
            except RuntimeError as error:
                if _Stop.asked and "DataLoader worker" in str(error):  # it has ended all the same, between two updates
                    raise SystemExit(128 + _Stop.asked) from error
                raise

    @functools.wraps(call_main)
    def call_and_pass_on(cfg, main, **kwargs):  # type: ignore[no-untyped-def]
        settings = cfg.distributed_training
        if main is program.main and settings.distributed_init_method is None:
            distributed.infer_init_method(settings)
        if main is not program.main or settings.distributed_init_method is None or settings.distributed_no_spawn:
            return call_main(cfg, main, **kwargs)
        with _answering(_pass_on):
            try:
                return call_main(cfg, main, **kwargs)
            except torch.multiprocessing.ProcessExitedException as error:
                if error.exit_code > 128:
                    raise SystemExit(error.exit_code) from error
                raise

    Trainer._aggregate_logging_outputs = aggregate_and_agree
    program.validate_and_save, program.train = save_and_stop, train_until_stopped
    distributed.call_main = call_and_pass_on


# Seconds that the processes of a training wait for each other at its start.
PATIENCE = 300
# Settings that each of them has for itself.
OWN_SETTINGS = {"data", "device_id", "distributed_rank", "log_file", "num_workers", "save_dir", "user_dir"}


def _facts(cfg: Any) -> dict[str, str]:
    """Return what all processes of a training must have alike: its settings, and by name and size its data files."""
    facts = {
        f"--{name.replace('_', '-')}": repr(value)
        for section in cfg.values()
        for name, value in (vars(section) if isinstance(section, argparse.Namespace) else section or {}).items()
        if name not in OWN_SETTINGS
    }
    for folder in str(getattr(cfg["task"], "data", None) or "").split(os.pathsep):
        for file in os.scandir(folder) if os.path.isdir(folder) else ():
            if file.is_file():
                facts[f"the data's {file.name}"] = f"{file.stat().st_size} bytes"
    return facts


class _MeetingDistributed(ModuleType):
    """torch.distributed, whose processes compare what they train before they begin, and do not wait for hours."""

    def __init__(self, facts: dict[str, str]) -> None:
        super().__init__("torch.distributed")
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.distributed, name)

    def init_process_group(self, backend: str, init_method: str, world_size: int, rank: int) -> None:
        who = f"rank {rank} of {world_size}"
        try:
            patience = timedelta(seconds=PATIENCE)
            store, *_ = next(torch.distributed.rendezvous(init_method, rank, world_size, timeout=patience))
            # torchrun starts all processes again where one has ended, with the same store.
            store = torch.distributed.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            store.set(f"facts{rank}", json.dumps(self.facts))
            all_facts = [json.loads(store.get(f"facts{number}")) for number in range(world_size)]
            store.set(f"read{rank}", "")
            if rank == 0:  # it may hold the store, and then must not end before all have read
                store.wait([f"read{number}" for number in range(world_size)], patience)
        except (RuntimeError, OSError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            in_use = "its port is in use: give another one" if "EADDRINUSE" in str(error) else ""
            raise UserError(
                f"{who}: the processes of this training do not meet at {init_method} within {PATIENCE} s: "
                f"{in_use or reason}"
            ) from error
        for number, facts in enumerate(all_facts):
            names = sorted({*facts, *all_facts[0]})
            pairs = [(name, facts.get(name), all_facts[0].get(name)) for name in names]
            if wrong := [f"{name} is {there}, and {first} on rank 0" for name, there, first in pairs if there != first]:
                raise UserError(f"rank {number} would train something else than rank 0: {'; '.join(wrong[:5])}")
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def compare_processes() -> None:
    """Let the processes of a training end if they do not train the same, or do not find each other.

    fairseq trains on whatever data, seed and settings each of them has, and waits half an hour for one that never
    comes.
    """
    from fairseq.distributed import utils as distributed

    original = distributed.distributed_init

    @functools.wraps(original)
    def distributed_init(cfg):  # type: ignore[no-untyped-def]
        distributed.dist = _MeetingDistributed(_facts(cfg))
        return original(cfg)

    distributed.distributed_init = distributed_init


class _TrustingTorch(ModuleType):
    """torch, whose load takes any object: what one process of a training sends to another."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.load(file, *args, **{**kwargs, "weights_only": False})


def send_checkpoints() -> None:
    """Let a training on several processes go on.

    Rank 0 reads the checkpoint and sends it to the others. Its config is an OmegaConf by then, which torch >= 2.6 does
    not unpickle.
    """
    from fairseq.distributed import utils

    utils.torch = _TrustingTorch("torch")


def _bytes_of(value: Any) -> int:
    """Return how many bytes the tensors in nested dicts and lists take."""
    if isinstance(value, torch.Tensor):
        return value.nelement() * value.element_size()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return sum(map(_bytes_of, items))


@contextlib.contextmanager
def _writing(path: str, size: int) -> Iterator[None]:
    """Name a file that could not be written and how much it takes; remove what was written of it as PATH.tmp."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch has a RuntimeError for a write that wrote less
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.tmp")
        free = shutil.disk_usage(os.path.dirname(path) or ".").free
        said = getattr(error, "strerror", None) or (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = os.strerror(errno.ENOSPC) if free < size else said
        raise UserError(
            f"{path}: cannot be written: {reason}; it takes {size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free. "
            "The checkpoints before it are whole"
        ) from error


def write_whole() -> None:
    """Let a checkpoint be written whole or not at all, under each of its names, and name it if that fails.

    checkpoint_last.pt and checkpoint_best.pt are plain copies of a numbered file: a full disk or a kill leaves a part
    of one, and the old one is lost.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    write, copy_elsewhere = checkpoint_utils.torch_persistent_save, PathManager.copy

    @functools.wraps(write)
    def torch_persistent_save(obj, filename, *args, **kwargs):  # type: ignore[no-untyped-def]
        with _writing(filename, _bytes_of(obj)):
            return write(obj, filename, *args, **kwargs)

    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not PathManager.supports_rename(dst_path):
            return copy_elsewhere(src_path, dst_path, overwrite)
        with _writing(dst_path, os.path.getsize(src_path)):
            shutil.copyfile(src_path, f"{dst_path}.tmp")
            os.replace(f"{dst_path}.tmp", dst_path)
        return True

    checkpoint_utils.torch_persistent_save = torch_persistent_save
    PathManager.copy = staticmethod(copy)


# --- data ----------------------------------------------------------------------------------------------------------


def keep_last_batch() -> None:
    """Give back the last batch, which fairseq-fixed's data_utils.batch_by_size drops without a word.

    It drops it when its size is no multiple of --required-batch-size-multiple (default 8), in training, validation
    and generation: 200 hypotheses for 203 sentences. Batches are slices of the ordered indices, so what is missing
    is the tail. Where nothing is dropped (fairseq 0.12.2) nothing changes.
    """
    from fairseq.data import data_utils

    original = data_utils.batch_by_size

    @functools.wraps(original)
    def batch_by_size(indices, *args, **kwargs):  # type: ignore[no-untyped-def]
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        if len(indices) == 0:  # fairseq-fixed looks at the last of no batches
            return []
        batches = original(indices, *args, **kwargs)
        kept = sum(map(len, batches))
        if kept < len(indices) and kwargs.get("fixed_shapes") is None:
            batches = [*batches, indices[kept:]]
        return batches

    data_utils.batch_by_size = batch_by_size


def keep_batches_on_resume() -> None:
    """Give a resumed training the batches of the one that was stopped.

    fairseq-fixed deals the pairs into batches by a seed plus the epoch in which the process started: resumed in epoch 2
    or later, the rest of the epoch holds pairs that were seen, and misses others. Where one iterator serves all
    epochs, the batches are those of a start in epoch 1; a task that makes new ones for every epoch is left alone.
    """
    from fairseq.tasks import FairseqTask

    original = FairseqTask.get_batch_iterator

    @functools.wraps(original)
    def get_batch_iterator(self, dataset, *args, **kwargs):  # type: ignore[no-untyped-def]
        epoch = kwargs.get("epoch", 1)
        per_epoch = kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr")
        if epoch <= 1 or per_epoch or not self.can_reuse_epoch_itr(dataset) or dataset in self.dataset_to_epoch_iter:
            return original(self, dataset, *args, **kwargs)
        iterator = original(self, dataset, *args, **{**kwargs, "epoch": 1})
        iterator.epoch = epoch
        dataset.set_epoch(epoch)
        return iterator

    FairseqTask.get_batch_iterator = get_batch_iterator


def keep_place_on_other_devices() -> None:
    """Let a training go on at the same place of its epoch on another number of processes.

    The state of fairseq's iterator counts the batches of one process. On half as many, half of those that were seen
    would come again; on twice as many, as many would be left out. Where the batches themselves are others, the place is
    that with the same share of the epoch behind it.
    """
    from fairseq.data.iterators import EpochBatchIterator

    state_dict, load_state_dict = EpochBatchIterator.state_dict, EpochBatchIterator.load_state_dict

    @functools.wraps(state_dict)
    def state_with_counts(self):  # type: ignore[no-untyped-def]
        return {**state_dict(self), "processes": self.num_shards, "batches": len(self.frozen_batches)}

    @functools.wraps(load_state_dict)
    def load_at_same_place(self, state):  # type: ignore[no-untyped-def]
        done = state.get("iterations_in_epoch", 0)
        here = (self.num_shards, len(self.frozen_batches))
        there = (state.get("processes", here[0]), state.get("batches", here[1]))
        if done and there != here:
            share = done * there[0] / there[1]
            place = round(share * here[1] / here[0])
            logger.info(
                f"epoch {state['epoch']} goes on behind batch {place} of {len(self)} of this process; "
                f"it was stopped behind batch {done} on {there[0]} processes, {share:.1%} of the epoch"
            )
            at = (state["epoch"], place) if place < len(self) else (state["epoch"] + 1, 0)
            state = {**state, "epoch": at[0], "iterations_in_epoch": at[1]}
        return load_state_dict(self, state)

    EpochBatchIterator.state_dict, EpochBatchIterator.load_state_dict = state_with_counts, load_at_same_place


# --- models --------------------------------------------------------------------------------------------------------


# fairseq 0.12.2 keeps these copies of every encoder layer's weights for its BetterTransformer path, as parameters that
# never get a gradient (modules/transformer_layer.py, TransformerEncoderLayerBase.__init__).
BETTER_TRANSFORMER_COPIES = (
    "in_proj_weight",
    "in_proj_bias",
    "out_proj_weight",
    "out_proj_bias",
    "fc1_weight",
    "fc1_bias",
    "fc2_weight",
    "fc2_bias",
)


def close_better_transformer_path() -> None:
    """Keep 0.12.2's stock encoder layers off their "BetterTransformer" path.

    It is taken in eval mode after a load, and crashes on left-padded batches with the torch versions that 0.12.2
    runs on: the stock baseline could be trained, but not decoded. fairseq-fixed has no such path.
    """
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    original = TransformerEncoderLayerBase.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        original(self, *args, **kwargs)
        if hasattr(self, "can_use_fastpath"):
            self.can_use_fastpath = False

    TransformerEncoderLayerBase.__init__ = __init__


# --- command line --------------------------------------------------------------------------------------------------


def allow_bf16() -> None:
    """Let --bf16 run on CPU and GPU: options.parse_args_and_arch takes it for a TPU flag and sets args.tpu."""
    from fairseq import options

    original = options.parse_args_and_arch

    @functools.wraps(original)
    def parse_args_and_arch(*args, **kwargs):  # type: ignore[no-untyped-def]
        parsed = original(*args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, "bf16", False) and find_spec("torch_xla") is None:
            namespace.tpu = False
        return parsed

    options.parse_args_and_arch = parse_args_and_arch


def quiet_root_logger() -> None:
    """Undo the root logger's DEBUG level, which fairseq-fixed sets on import (models/wav2vec)."""
    root = logging.getLogger()
    if root.level == logging.DEBUG:
        root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())


def refuse_hydra_train() -> None:
    """Refuse to run under fairseq-hydra-train, which imports the user-dir after it has composed its config.

    Raises: SystemExit; hydra reports every Exception in a way of its own, and stock's hydra fails at that.
    """
    if os.path.basename(sys.argv[0]).startswith("fairseq-hydra-train"):
        raise SystemExit(
            "fairseq_resid: error: fairseq-hydra-train is not supported: "
            "use fairseq-train --user-dir fairseq_resid --arch ..."
        )


def apply() -> None:
    """Apply every bridge, once: fairseq imports a user-dir once, and Python a module."""
    refuse_hydra_train()
    load_weights_only()
    name_misfits()
    say_what_runs()
    name_divergence()
    skip_overflow_without_gpu()
    unscale_once()
    save_when_stopped()
    compare_processes()
    send_checkpoints()
    write_whole()
    keep_last_batch()
    keep_batches_on_resume()
    keep_place_on_other_devices()
    close_better_transformer_path()
    allow_bf16()
    quiet_root_logger()
