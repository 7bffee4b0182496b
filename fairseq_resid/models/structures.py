"""Code shared by all our models: flags of residual structures, their resolution, and the logging of coefficients."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from .. import connections
from ..fairseq_patches import UserError
from ..ops import missing_compiler
from .coefficients import CoefficientLog

logger = logging.getLogger(__name__)

MEANINGS = {
    "layer": "LayerNorm over the channels of each position",
    "batch": "batch normalisation over all positions",
    "rms": "RMSNorm",
    "scale": "ScaleNorm, one gain for all channels",
    "dyt": "tanh without statistics (DyT)",
    "derf": "erf without statistics (Derf)",
}  # the choices of --norm


def positive(text: str) -> int:
    """Parse a flag's value that must be a positive integer."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def residual_name(name: str) -> str:
    try:
        connections.canonical(name)
    except connections.InvalidOption as error:
        raise argparse.ArgumentTypeError(error.flags.removeprefix("--residual ")) from None
    return name


def add_flags(parser: Any, default: str, norms: Collection[str]) -> None:
    """Add --residual, --norm, --residual-backend, --log-coefficients, and a flag for every option of the structures.

    Raises: UserError naming a structure with an option whose flag fairseq has already.
    """
    formulas = "; ".join(f"{name}: {connections.structure(name).formula}" for name in connections.names())
    parser.add_argument(
        "--residual",
        type=residual_name,
        metavar="NAME",
        help=f"residual structure (default: {default}). {formulas}".replace("%", "%%"),
    )
    parser.add_argument(
        "--norm",
        choices=tuple(norms),
        help="norm of the residual structure: "
        + "; ".join(f"{name}, {MEANINGS[name]}" for name in norms)
        + " (default: layer)",
    )
    parser.add_argument(
        "--residual-backend",
        metavar="{eager,compile}",
        help="how formulas of the residual structure are computed. eager: by PyTorch, operation by operation; compile: "
        "by torch.compile, which takes time at the start (default: eager)",
    )
    parser.add_argument(
        "--log-coefficients",
        action="store_true",
        default=None,
        help="log the mean of every coefficient of every site in fairseq's training log, at log intervals",
    )
    for name, meanings in connections.all_options().items():
        text = "; ".join(f"{variant}: {spec.help} (default: {spec.default})" for variant, spec in meanings.items())
        option = next(iter(meanings.values()))
        flag = "--" + name.replace("_", "-")
        kind: dict[str, Any] = {"choices": option.choices} if option.choices else {"type": float, "metavar": "X"}
        try:
            parser.add_argument(flag, **kind, help=text.replace("%", "%%"))
        except argparse.ArgumentError:
            owner = next(iter(meanings))
            raise UserError(
                f"residual {owner}: option {name}: {flag} is a flag of fairseq; rename the option"
            ) from None


def settle(args: argparse.Namespace, default: str, norms: Collection[str]) -> connections.Options:
    """Resolve `args.residual`, its norm, backend and options, write them to `args`, and return the options.

    Raises: UserError if flags contradict each other or the structure.
    """
    backend = getattr(args, "residual_backend", None) or "eager"  # checkpoints older than the flag lack it
    if backend == "triton" and is_new(args):
        raise UserError("--residual-backend triton: the kernels were removed in version 1.1; use compile")
    try:
        residual = connections.canonical(getattr(args, "residual", None) or default)
        options = connections.resolve(residual, {name: getattr(args, name, None) for name in connections.all_options()})
        backend = connections.resolve_backend(backend)
    except connections.InvalidOption as error:
        raise UserError(error.flags) from None
    norm = getattr(args, "norm", None) or "layer"
    if backend == "compile" and (missing := missing_compiler()):
        if is_new(args):
            raise UserError(f"--residual-backend compile: {missing}; use eager")
        logger.info("residual backend: eager, because %s", missing)
        backend = "eager"
    args.residual, args.norm, args.residual_backend = residual, norm, backend
    vars(args).update(options.values())
    return options


def is_new(args: argparse.Namespace) -> bool:
    """Return whether flags describe a new model, rather than that of a checkpoint or a run that is resumed."""
    folder = getattr(args, "save_dir", None)  # fairseq has this flag only in training
    is_resumed = folder is not None and any(Path(folder).glob("checkpoint*.pt"))
    return not hasattr(args, "_name") and not is_resumed  # the config of a checkpoint has _name


def check_norm(args: argparse.Namespace, final_norm: bool) -> None:
    """Raise UserError if --norm has no effect on a new model with the resolved structure."""
    options = connections.resolve(args.residual, options_of(args))
    if args.norm != "layer" and is_new(args) and not connections.uses_norm(args.residual, options, final_norm):
        raise UserError(f"--norm {args.norm}: --residual {args.residual} has no norm with these options; omit --norm")


def check_widths(args: argparse.Namespace, widths: Iterable[int]) -> None:
    """Raise UserError if an option of a new model's resolved structure does not fit one of the model's widths."""
    if not is_new(args):
        return
    options = connections.resolve(args.residual, options_of(args))
    try:
        for width in widths:
            options.check_width(width)
    except connections.InvalidOption as error:
        raise UserError(error.flags) from None


def options_of(cfg: Any) -> dict[str, Any]:
    return {name: getattr(cfg, name) for name in connections.options(cfg.residual)}


class Structured:
    """Mixin for a fairseq model with a residual structure; it must precede fairseq's class among the bases.

    cfg: the model's config
    """

    cfg: Any
    coefficient_log: CoefficientLog | None = None

    @classmethod
    def hub_models(cls) -> dict[str, Any]:
        """Return an empty dict, because we publish no pretrained models and those of fairseq do not apply."""
        return {}

    def log_coefficients(self, args: argparse.Namespace) -> None:
        if getattr(args, "log_coefficients", None):
            self.coefficient_log = CoefficientLog(self, args.log_interval)  # type: ignore[arg-type]

    def set_num_updates(self, num_updates: int) -> None:
        """Set the number of updates so far; fairseq calls this before the next update."""
        super().set_num_updates(num_updates)  # type: ignore[misc]
        if self.coefficient_log is not None:
            self.coefficient_log.before(num_updates)

    def load_state_dict(self, state_dict: Any, *given: Any, **named: Any) -> Any:
        """Load a checkpoint of this model.

        Translation models also accept a checkpoint of stock `transformer` with the same parameters.

        Raises: UserError naming the cause, such as another size, and the first tensor that is missing or unexpected, or
        has a different shape or kind of dtype.
        """
        for name, own in self.state_dict().items():  # type: ignore[attr-defined]
            theirs = state_dict.get(name, own)
            # torch would convert the values silently: it would round them or drop their imaginary parts.
            if theirs.is_floating_point() != own.is_floating_point():
                raise UserError(f"the checkpoint does not fit {self.named()}: {name} has dtype {theirs.dtype}")
        return super().load_state_dict(state_dict, *given, **named)  # type: ignore[misc]

    def differences(self, cfg: Any, resumes: bool) -> tuple[str, str] | None:
        """Return the flags in which the structures of a checkpoint and this model differ, or None if they do not.

        cfg: the config of the checkpoint's model
        resumes: the state of the optimizer is loaded too, so that the parameters must also have the same order
        """
        if resumes and not hasattr(cfg, "residual") and hasattr(cfg, "encoder_normalize_before"):
            return f"--arch {getattr(cfg, 'arch', 'transformer')}", self.named()
        return connections.function_differences(cfg, self.cfg)

    def named(self) -> str:
        residual = getattr(self.cfg, "residual", None)
        return f"--residual {residual}" if residual else f"--arch {self.cfg.arch}"

    def divergence_advice(self) -> str:
        """Return the advice for the error message of a run that diverged (fairseq_patches.name_divergence)."""
        residual = getattr(self.cfg, "residual", None)
        if getattr(self.cfg, "residual_norm", None) == "none":
            remedy = "--residual-norm layer"
        elif f"{residual}_ln" in connections.names():
            remedy = f"--residual {residual}_ln"
        else:
            return "use a lower --lr"
        return f"--residual {residual} has no norm: use {remedy}, or a lower --lr"
