"""The base class of image models for fairseq, and their common parts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairseq.models import BaseFairseqModel, register_model_architecture
from torch import Tensor, nn

from .. import connections
from ..connections import Place
from ..connections.core.norms import EPS
from ..fairseq_patches import UserError
from .structures import Structured, add_flags, check_norm, options_of, settle


class PositionBatchNorm(nn.BatchNorm1d):
    """BatchNorm over all positions of all images, with channels last. Shapes: (..., C) -> (..., C)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, x.size(-1))).view(x.shape)


def batch_norm(dim: int) -> nn.Module:
    """Return the norm of connections with --norm batch."""
    return PositionBatchNorm(dim, eps=EPS)


NORMS = {**connections.NORMS, "batch": batch_norm}


def last(x: Tensor) -> Tensor:
    """Return a view of (N, C, H, W) as (N, H, W, C), which is contiguous if x is channels-last."""
    return x.permute(0, 2, 3, 1)


def first(x: Tensor) -> Tensor:
    """Return a view of (N, H, W, C) as (N, C, H, W), channels-last in memory."""
    return x.permute(0, 3, 1, 2)


def allowed_structures() -> list[str]:
    """Return the names of the structures with a state of C channels."""
    return [name for name in connections.names() if not connections.has_wide_state(name)]


def build_site(cfg: Any, place: Place, residual: str | None = None) -> connections.ResidualConnection:
    """Return the connection of a block; `residual` replaces the model's structure with another one."""
    if residual is not None:
        return connections.build(residual, place, backend="eager")
    return connections.build(cfg.residual, place, backend=cfg.residual_backend, **options_of(cfg))


def he_normal(module: nn.Module) -> None:
    """Sample a layer's weights as in He 2015 (MSR).

    Formula:  N(0, 2 / (k² out)) for a convolution, N(0, 2 / in) for a linear layer
    A linear layer uses the number of its inputs, because the last layer has only as many outputs as there are classes.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")


def fill(args: argparse.Namespace, values: Mapping[str, Any]) -> None:
    """Set the values of an architecture in a namespace, except those set by a flag."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def refuse_structure_without_sites(args: argparse.Namespace) -> None:
    """Raise UserError if a command line chooses a structure for an architecture that has no shortcuts."""
    given = [name for name in ("residual", "norm") if getattr(args, name, None)]
    # A namespace with _name comes from a checkpoint, where all options are resolved.
    if args.no_shortcut and given and not hasattr(args, "_name"):
        raise UserError(
            f"--{given[0]} {getattr(args, given[0])}: not supported, because the architecture has no shortcuts"
        )


class ImageClassifier(Structured, BaseFairseqModel):  # type: ignore[misc]
    """A network whose `forward(images)` returns a logit for each class.

    Shapes:   images (N, 3, H, W) -> (N, classes)
    """

    def __init__(self, cfg: Any, inputs: int, classes: int) -> None:
        super().__init__()
        self.cfg, self.inputs, self.classes = cfg, inputs, classes

    @staticmethod
    def add_image_flags(parser: Any) -> None:
        add_flags(parser, "xskip", NORMS)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> ImageClassifier:
        """Return a new model from a parsed command line or from the config of a checkpoint.

        Raises: UserError for contradictory options, or a task without classes.
        """
        known = getattr(task, "known", None)
        if known is None:
            raise UserError(f"--arch {getattr(args, 'arch', '')}: an image model needs --task image_classification")
        cls.settle(args)
        model = cls(args, cls.inputs_of(known.shape), len(known.classes))
        model.log_coefficients(args)
        return model

    @staticmethod
    def inputs_of(shape: Sequence[int]) -> int:
        """Return the number of inputs to the first layer for images of shape (C, H, W). By default, it is C."""
        return shape[0]

    @classmethod
    def settle(cls, args: argparse.Namespace) -> None:
        """Resolve every option and write it to `args`.

        Raises: UserError naming the invalid structure or flag, or a structure that needs sentences.
        """
        options = settle(args, "xskip", NORMS)
        if connections.has_wide_state(args.residual):
            raise UserError(
                f"--residual {args.residual}: its state is wider than C channels; choose one of "
                f"{', '.join(allowed_structures())}"
            )
        check_norm(args, final_norm=False)
        if connections.profiler(args.residual, options):
            raise UserError(f"--residual {args.residual}: its first pass needs sentences; use --admin-start closed")

    def get_normalized_probs(self, net_output: Tensor, log_probs: bool, sample: Any = None) -> Tensor:
        """Return the (log-)probabilities of all classes in fp32."""
        norm = nn.functional.log_softmax if log_probs else nn.functional.softmax
        return norm(net_output.float(), dim=-1)

    def get_targets(self, sample: dict[str, Any], net_output: Tensor) -> Tensor:
        return sample["target"]

    def max_positions(self) -> None:
        return None


def register_architectures(
    model: str,
    network: type[ImageClassifier],
    defaults: Mapping[str, Any],
    architectures: Mapping[str, Mapping[str, Any]],
) -> None:
    """Register the named architectures of an image model; the values of each override the model's defaults."""

    def preset(own: Mapping[str, Any]) -> Callable[[argparse.Namespace], None]:
        def architecture(args: argparse.Namespace) -> None:
            fill(args, {**defaults, **own})
            network.settle(argparse.Namespace(**vars(args)))  # checks the flags before the data is loaded

        return architecture

    for name, own in architectures.items():
        register_model_architecture(model, name)(preset(own))
