"""What the image models have in common: from an image to the log-probabilities of its classes, for fairseq."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from .. import connections
from ..connections import Place
from ..connections.place import EPS, layer_norm
from ..fairseq_patches import UserError
from .structures import Structured, add_flags, options_of, require_namespace, settle

# SAS paper, section 4.2: where the gates of an image model start. 0 for translation.
SAS_STARTS = {"sas_alpha_bias": 3.0, "sas_beta_bias": -3.0}


class PositionBatchNorm(nn.BatchNorm1d):
    """BatchNorm over all positions of all images, for channels in the last dimension. Shapes: (..., C) -> the same."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, x.size(-1))).view(x.shape)


def batch_norm(dim: int) -> nn.Module:
    """Return the norm that --norm batch puts into a connection."""
    return PositionBatchNorm(dim, eps=EPS)


NORMS = {"layer": layer_norm, "batch": batch_norm}


def last(x: Tensor) -> Tensor:
    """Return (N, C, H, W) as (N, H, W, C): a view, whose memory is in order if x is channels-last."""
    return x.permute(0, 2, 3, 1)


def first(x: Tensor) -> Tensor:
    """Return (N, H, W, C) as (N, C, H, W): a view, channels-last in memory."""
    return x.permute(0, 3, 1, 2)


def allowed_structures() -> list[str]:
    """Return the structures that hold on one state of C channels."""
    return [name for name in connections.names() if not connections.has_wide_state(name)]


def settle_images(args: argparse.Namespace) -> None:
    """Settle the structure of an image model: `structures.settle`, and the start of SAS's gates, 3 and −3.

    Raises: UserError naming the structure or the flag that cannot be.
    """
    residual = getattr(args, "residual", None)
    if residual == "sas":
        for name, start in SAS_STARTS.items():
            if getattr(args, name, None) is None:
                setattr(args, name, start)
    options = settle(args, "xskip")
    if connections.has_wide_state(args.residual):
        raise UserError(
            f"--residual {args.residual}: its state is wider than C channels; an image model takes one of "
            f"{', '.join(allowed_structures())}"
        )
    if connections.profiler(args.residual, options):
        raise UserError(f"--residual {args.residual}: its first pass reads sentences; use --admin-start closed")
    args.norm = getattr(args, "norm", None) or "layer"
    if args.norm not in NORMS:
        raise UserError(f"--norm {args.norm}: choose one of {', '.join(NORMS)}")
    if args.norm != "layer" and args.residual_backend == "triton":
        raise UserError(f"--residual-backend triton: there is no kernel for --norm {args.norm}; use auto or eager")


def build_site(cfg: Any, place: Place, residual: str | None = None) -> connections.ResidualConnection:
    """Return the connection of a block; `residual` names another structure than the model's, without options."""
    if residual is not None:
        return connections.build(residual, place, backend="eager")
    return connections.build(cfg.residual, place, backend=cfg.residual_backend, **options_of(cfg))


def he_normal(module: nn.Module) -> None:
    """Draw a convolution's weights from N(0, 2 / (k² · out)), as He 2015 does."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ImageClassifier(Structured, BaseFairseqModel):  # type: ignore[misc]
    """A network that gives each class of an image a logit: `forward(images)`.

    Shapes:   images (N, 3, H, W) -> (N, classes)
    """

    def __init__(self, cfg: Any, channels: int, classes: int) -> None:
        super().__init__()
        self.cfg, self.channels, self.classes = cfg, channels, classes

    @staticmethod
    def add_image_flags(parser: Any) -> None:
        """Add the flags of every image model."""
        add_flags(parser, "xskip")
        parser.add_argument(
            "--norm",
            choices=tuple(NORMS),
            help="norm of the residual structure: layer, over the channels at each position; batch (default: layer)",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> ImageClassifier:
        """Return a new model of a parsed command line or of a checkpoint's config.

        Raises: UserError for contradicting options, and for a task without classes.
        """
        require_namespace(args)
        known = getattr(task, "known", None)
        if known is None:
            raise UserError(f"--arch {getattr(args, 'arch', '')}: a model of images, and the task is another")
        cls.settle(args)
        model = cls(args, known.shape[0], len(known.classes))
        model.log_coefficients(args)
        return model

    @classmethod
    def settle(cls, args: argparse.Namespace) -> None:
        """Settle every option, and write it back to `args`."""
        settle_images(args)

    def get_normalized_probs(self, net_output: Tensor, log_probs: bool, sample: Any = None) -> Tensor:
        """Return the (log-)probabilities of all classes in fp32."""
        norm = nn.functional.log_softmax if log_probs else nn.functional.softmax
        return norm(net_output.float(), dim=-1)

    def get_targets(self, sample: dict[str, Any], net_output: Tensor) -> Tensor:
        return sample["target"]

    def max_positions(self) -> None:
        return None
