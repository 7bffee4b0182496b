"""Loading of checkpoints: fairseq reads only data, never code, and every error names the file."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib import import_module
from typing import Any

import torch

from . import building, dictionaries, reader
from .errors import UserError
from .stand_in import StandIn

logger = logging.getLogger(__name__)

# Config values that fairseq passes to Python's eval if they are strings. A test compares this list with the source of
# the installed fairseq.
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
    """Load a fairseq checkpoint on the CPU as pure data, memory-mapped if its format allows it.

    Raises: ValueError naming the file if it is damaged, contains code or is not a fairseq checkpoint; OSError if it
    does not exist.
    """
    require_file(path)
    state = reader.read(path, is_mapped=True)
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError(f"{path}: not a fairseq checkpoint: it has no 'model'")
    refuse_code(state, str(path))
    return state


def require_file(path: str | os.PathLike[str]) -> None:
    """Refuse paths that exist but are not regular files: opening a named pipe would block forever.

    Raises: UserError naming the path.
    """
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: cannot be loaded: not a regular file")


def check_finite(model: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Check that all weights of a checkpoint are finite.

    Raises: UserError naming the file and the first parameter with NaN or infinite values.
    """
    for name, tensor in model.items():
        # fairseq saves the marker `_float_tensor` uninitialised.
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or name.endswith("_float_tensor"):
            continue
        if not tensor.sum(dtype=torch.float64).isfinite():
            count = tensor.numel() - int(tensor.isfinite().sum())
            raise UserError(f"{path}: {name} has NaN or infinite values ({count:,} of {tensor.numel():,})")


LITERAL = (
    ast.Expression, ast.Constant, ast.UnaryOp, ast.UAdd, ast.USub, ast.List, ast.Tuple, ast.Dict, ast.BinOp, ast.Add,
    ast.Mult, ast.Load,
)  # fmt: skip


def is_literal(text: str) -> bool:
    """Return whether a Python expression consists only of literals, containers, signs, `+` and `*`.

    >>> is_literal("(0.9, 0.98)"), is_literal("[(512, 3)] * 20"), is_literal("print(1)")
    (True, True, False)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(node, LITERAL) for node in ast.walk(tree))


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
    """Return whether a setting is safe to pass to eval: a number, a string with a literal, or a container of these.

    eval also runs bytes and byte arrays as code, and weights-only loading allows both types.
    """
    if isinstance(value, str):
        return not value.strip() or is_literal(value)
    if isinstance(value, dict):
        return all(is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float))


def refuse_code(state: Any, path: str) -> None:
    """Refuse a checkpoint whose config contains code that fairseq or OmegaConf would evaluate.

    Weights-only loading does not prevent this: fairseq calls eval on settings such as optimizer.adam_betas, and
    OmegaConf replaces `${oc.env:HOME}` and `${oc.create:...}` with environment variables or whole configs.

    Raises: UserError naming the file, the setting and its value.
    """
    if not isinstance(state, dict):
        raise UserError(f"{path}: not a fairseq checkpoint")
    for key, kind in (("cfg", dict), ("args", argparse.Namespace)):
        if not isinstance(state.get(key), (kind, type(None))):
            # fairseq passes the config to OmegaConf.create, which parses a string as YAML, bypassing the check below.
            raise UserError(f"{path}: its {key} is a {type(state[key]).__name__}; must be a {kind.__name__}")
        for name, value in _settings(state.get(key)):
            if name in EVALUATED and not is_plain(value):
                raise UserError(
                    f"{path}: its config has {name}={reader.shown(value)}, which fairseq would run as code; "
                    "only literals (numbers, strings, lists, tuples, dicts, + and * between them) are accepted"
                )
            if any(isinstance(text, str) and RESOLVER.search(text) for text in (name, value)):
                raise UserError(
                    f"{path}: its config has {name[:80]}={reader.shown(value)}, which OmegaConf would resolve"
                )


# fairseq only saves resolved configs. A plain reference to another setting is harmless and allowed.
RESOLVER = re.compile(r"\$\{(?![\w.]+\})")
# Settings that name files, which fairseq would read together with a model. These are initial embeddings, which the
# checkpoint's weights replace, and decoding options, which belong on the command line.
FILES = ("encoder_embed_path", "decoder_embed_path", "replace_unk", "lm_path")
PROGRAMS = ("tokenizer", "bpe")


def forget_files(state: dict[str, Any], path: str) -> None:
    """Remove settings that name other files or URLs: these may be missing, belong to someone else or never end."""
    config = state.get("cfg") or {}
    for settings in (config, *config.values(), state.get("args")):
        settings = vars(settings) if isinstance(settings, argparse.Namespace) else settings
        if not isinstance(settings, dict):
            continue
        settings.update({name: None for name in FILES if name in settings})
        for name in PROGRAMS:
            if settings.get(name) is not None:
                logger.warning(
                    "%s: its config has %s=%s, which is ignored; pass it when you load the model",
                    path, name, reader.shown(settings[name]),
                )  # fmt: skip
                settings[name] = None


def _load(file: Any, *_: Any, **__: Any) -> Any:
    """Load a checkpoint like torch.load, but read only data, and refuse code in its config and non-finite weights.

    Raises: UserError naming the file.
    """
    path = str(getattr(file, "name", file))
    try:
        # The file is not memory-mapped, because a resumed training run overwrites it.
        state = reader.read(path)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None
    refuse_code(state, path)
    forget_files(state, path)
    # This comes before fairseq replaces the data folder in the config by the one on the command line.
    state[dictionaries.KNOWN] = dictionaries.known(state, path)
    if isinstance(state.get("model"), dict):
        check_finite(state["model"], path)
    return state


@contextlib.contextmanager
def naming(*files: str) -> Iterator[None]:
    """Turn any error in the block into a one-line UserError that names the checkpoint files."""
    for file in files:
        require_file(file)
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())
        if isinstance(error, UserError) and said.startswith(tuple(f"{file}: " for file in files)):
            raise
        said = said if isinstance(error, UserError) else f"{type(error).__name__}: {said[:500]}"
        raise UserError(f"{', '.join(files)}: cannot be loaded: {said}") from error


# Checks a checkpoint that a trainer reads; None while no trainer is loading.
_check: ContextVar[Callable[[dict[str, Any]], None] | None] = ContextVar("check", default=None)

LOADERS = (
    "fairseq.checkpoint_utils",
    "fairseq.data.codedataset",
    "fairseq.models.speech_to_text.xm_transformer",
    "fairseq.models.text_to_speech.vocoder",
)


def load_weights_only() -> None:
    """Make fairseq load checkpoints as weights only, with every torch version, and name the file in its errors.

    torch < 2.6 (required by fairseq 0.12.2) unpickles arbitrary objects. train, generate, validate, interactive and hub
    all load in fairseq/checkpoint_utils.py. The other modules in LOADERS call torch.load for files that a config names,
    and a checkpoint contains its own config.
    """
    from fairseq import checkpoint_utils

    for name in LOADERS:
        vars(import_module(name))["torch"] = StandIn(torch, load=_load)

    load_file, load_models = checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.load_model_ensemble_and_task

    @functools.wraps(load_file)
    def load_checkpoint_to_cpu(path, *args, **kwargs):  # type: ignore[no-untyped-def]
        with naming(path):
            state = load_file(path, *args, **kwargs)
            if not isinstance(state.get("model"), dict):
                raise UserError(f"{path}: not a fairseq checkpoint: it has no 'model'")
            building.was_read(path, state)
            if check := _check.get():
                check(state)
            return state

    @functools.wraps(load_models)
    def load_model_ensemble_and_task(filenames, *args, **kwargs):  # type: ignore[no-untyped-def]
        given = kwargs.get("state")
        with naming(*filenames), building.loading(filenames[0], given):
            return load_models(filenames, *args, **kwargs)

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task


def name_missing_folders() -> None:
    """Name a missing folder that is passed to from_pretrained.

    fairseq logs it at level INFO, returns None, and then fails in os.path.join.
    """
    from fairseq import file_utils

    original = file_utils.load_archive_file

    @functools.wraps(original)
    def load_archive_file(archive_file):  # type: ignore[no-untyped-def]
        if (found := original(archive_file)) is None:
            raise UserError(f"{archive_file}: no such file or folder")
        return found

    file_utils.load_archive_file = load_archive_file


def show_load_errors() -> None:
    """Show why the trainer cannot load a checkpoint, and refuse paths that are not regular files.

    Trainer.load_checkpoint replaces every error of load_state_dict with "please ensure that the architectures match",
    and starts from scratch if the path is not a regular file.
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


def compare_models() -> None:
    """Refuse to train on a checkpoint of other dictionaries, or to resume one of another residual structure.

    fairseq compares only names and shapes, so with a reused --save-dir, it would continue one structure as another.
    If the optimizer is reset, as by --finetune-from-model, another structure may be intended, and a warning is logged.
    """
    from fairseq.trainer import Trainer

    original = Trainer.load_checkpoint

    @functools.wraps(original)
    def load_checkpoint(self, filename, reset_optimizer=False, *args, **kwargs):  # type: ignore[no-untyped-def]
        def check(state: dict[str, Any]) -> None:
            dictionaries.check(filename, state, dictionaries.of_task(self.task))
            config, compare = (state.get("cfg") or {}).get("model"), getattr(self.get_model(), "differences", None)
            differing = compare(config, resumes=not reset_optimizer) if config is not None and compare else None
            if differing is None:
                return
            theirs, own = differing
            if not reset_optimizer:
                raise UserError(
                    f"{filename}: trained with {theirs}; cannot be resumed with {own}; to start from its weights, use "
                    "--finetune-from-model with a new --save-dir"
                )
            logger.warning("%s: trained with %s; its weights are now used with %s", filename, theirs, own)

        token = _check.set(check)
        try:
            return original(self, filename, reset_optimizer, *args, **kwargs)
        finally:
            _check.reset(token)

    Trainer.load_checkpoint = load_checkpoint
