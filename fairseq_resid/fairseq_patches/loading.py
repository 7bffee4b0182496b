"""Loading of checkpoints: fairseq reads only data, never code, and every error names the file."""

from __future__ import annotations

import argparse
import ast
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import dictionaries, reader
from .errors import UserError
from .patching import StandIn, wrap

logger = logging.getLogger(__name__)

# Config values that fairseq passes to Python's eval if they are strings.
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
    state: dict[str, Any] = reader.read(path, is_mapped=True)
    refuse_code(state, str(path))
    if not isinstance(state.get("model"), dict):
        raise ValueError(f"{path}: not a fairseq checkpoint: it has no 'model'")
    return state


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
                    f"{path}: its config has {name}={value!r:.100}, which fairseq would run as code; "
                    "only literals (numbers, strings, lists, tuples, dicts, + and * between them) are accepted"
                )
            if any(isinstance(text, str) and RESOLVER.search(text) for text in (name, value)):
                raise UserError(f"{path}: its config has {name[:80]}={value!r:.100}, which OmegaConf would resolve")


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
                    path, name, f"{settings[name]!r:.100}",
                )  # fmt: skip
                settings[name] = None


def _load(file: Any, *_: Any, **__: Any) -> Any:
    """Load a checkpoint like torch.load, but read only data, and refuse code in its config and non-finite weights.

    Raises: UserError naming the file.
    """
    path = str(getattr(file, "name", file))
    state = reader.read(path)  # not memory-mapped, because a resumed training run overwrites the file
    refuse_code(state, path)
    forget_files(state, path)
    # This comes before fairseq replaces the data folder in the config by the one on the command line.
    state[dictionaries.KNOWN] = dictionaries.known(state, path)
    check_finite(state.get("model") or {}, path)
    return state


@contextlib.contextmanager
def naming(*files: str) -> Iterator[None]:
    """Turn any error in the block into a one-line UserError that names the checkpoint files."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())
        if isinstance(error, UserError) and said.startswith(tuple(f"{file}: " for file in files)):
            raise
        said = said if isinstance(error, UserError) else f"{type(error).__name__}: {said[:500]}"
        raise UserError(f"{', '.join(files)}: cannot be loaded: {said}") from error


Check = Callable[[str, dict[str, Any]], None]
_checks: list[Check] = []


@contextlib.contextmanager
def _checking(check: Check) -> Iterator[None]:
    """Call `check` with the path and the content of every checkpoint that fairseq reads in this block."""
    _checks.append(check)
    try:
        yield
    finally:
        _checks.remove(check)


def load_weights_only() -> None:
    """Make fairseq load checkpoints as weights only, with every torch version, and name the file in its errors.

    torch < 2.6 (required by fairseq 0.12.2) unpickles arbitrary objects. train, generate, validate, interactive and hub
    all load in fairseq/checkpoint_utils.py.
    """
    from fairseq import checkpoint_utils

    checkpoint_utils.torch = StandIn(torch, load=_load)

    @wrap(checkpoint_utils)
    def load_checkpoint_to_cpu(original, path, *args, **kwargs):
        with naming(path):
            state = original(path, *args, **kwargs)
            for check in _checks:
                check(path, state)
            return state


def name_missing_folders() -> None:
    """Name a missing folder that is passed to from_pretrained.

    fairseq logs it at level INFO, returns None, and then fails in os.path.join.
    """
    from fairseq import file_utils

    @wrap(file_utils)
    def load_archive_file(original, archive_file):
        if (found := original(archive_file)) is None:
            raise UserError(f"{archive_file}: no such file or folder")
        return found


def check_ensembles() -> None:
    """Refuse models of other dictionaries, with which every word would have the embedding of another one."""
    from fairseq import checkpoint_utils, models

    unchecked: list[tuple[str, dict[str, Any]]] = []  # the checkpoint whose model fairseq builds next

    @wrap(checkpoint_utils)
    def load_model_ensemble_and_task(original, filenames, *args, **kwargs):
        if given := kwargs.get("state"):
            unchecked.append((filenames[0], given))
        try:
            with naming(*filenames), _checking(lambda path, state: unchecked.append((path, state))):
                return original(filenames, *args, **kwargs)
        finally:
            unchecked.clear()

    @wrap(models)
    def build_model(original, cfg, task, *args, **kwargs):
        while unchecked:
            dictionaries.check(*unchecked.pop(), dictionaries.of_task(task))
        return original(cfg, task, *args, **kwargs)


def check_resumed() -> None:
    """Refuse to train on a checkpoint of other dictionaries, or to resume one of another residual structure.

    fairseq compares only names and shapes, so with a reused --save-dir, it would continue one structure as another.
    If the optimizer is reset, as by --finetune-from-model, another structure may be intended, and a warning is logged.
    Trainer.load_checkpoint also starts from scratch if the path is not a regular file, and replaces every error of
    load_state_dict with "please ensure that the architectures match".
    """
    from fairseq.trainer import Trainer

    @wrap(Trainer)
    def load_checkpoint(original, self, filename, reset_optimizer=False, *args, **kwargs):
        def check(path: str, state: dict[str, Any]) -> None:
            dictionaries.check(path, state, dictionaries.of_task(self.task))
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

        if os.path.lexists(filename) and not os.path.isfile(filename):
            raise UserError(f"{filename}: cannot be loaded: not a regular file")
        with naming(filename), _checking(check):
            try:
                return original(self, filename, reset_optimizer, *args, **kwargs)
            except Exception as error:
                if type(error) is Exception and error.__context__:  # "please ensure ..."
                    raise error.__context__ from None
                raise
