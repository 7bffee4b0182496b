"""Fully connected networks for images, with or without ResNet Init and shortcuts.

The pixels of an image form one vector. Targ 2016 notes that the generalised block also suits fully connected layers
(section 2, eq. 2) but evaluates no such network, so the depth and width here are our choice.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from fairseq.models import register_model
from torch import Tensor, nn

from .. import connections
from ..connections import Place
from .classifier import (
    NORMS,
    ImageClassifier,
    build_site,
    fill,
    he_normal,
    refuse_structure_without_sites,
    register_architectures,
)
from .structures import check_widths, positive
from .two_streams import TwoStreamLinear


class FullyConnectedBlock(nn.Module):
    """A branch of fully connected layers, and the site `residual` that joins it to its shortcut.

    Formula:  y = ReLU(site(x, branch(x))), branch: linear BN ReLU, ..., linear BN; y = ReLU(branch(x)) without a site
    Shapes:   (N, C) -> (N, C)
    """

    def __init__(self, cfg: Any, place: Place) -> None:
        super().__init__()
        kind = TwoStreamLinear if cfg.two_streams else nn.Linear
        layers = [kind(place.dim, place.dim, bias=False) for _ in range(cfg.block_layers)]
        parts: list[nn.Module] = []
        for layer in layers:
            he_normal(layer)
            parts += [layer, nn.BatchNorm1d(place.dim), nn.ReLU()]
        self.branch = nn.Sequential(*parts[:-1])
        self.after = nn.ReLU()
        self.residual: connections.ResidualConnection | None = None
        if not cfg.no_shortcut:
            self.residual = build_site(cfg, place)
            self.residual.init_branch(**{f"fc{number}": layer for number, layer in enumerate(layers, start=1)})

    def forward(self, x: Tensor) -> Tensor:
        if self.residual is None:
            return self.after(self.branch(x))
        state = x[:, None, None]  # (N, 1, 1, C): one position of an image, as analysis and --norm batch expect it
        f = self.branch(self.residual.branch_input(state)[:, 0, 0])
        return self.after(self.residual(state, f[:, None, None])[:, 0, 0])


@register_model("fully_connected_resid")
class FullyConnectedNetwork(ImageClassifier):
    """A fully connected network with a choice of residual structure: --arch rir_fc --residual NAME.

    Formula:  linear BN ReLU of the pixels, blocks, linear to the classes; weights sampled as in He 2015
    """

    @classmethod
    def add_args(cls, parser: Any) -> None:
        cls.add_image_flags(parser)
        add = parser.add_argument
        add("--hidden-blocks", type=positive, metavar="N", help="number of blocks (default: the architecture's)")
        add("--hidden-width", type=positive, metavar="C", help="width of the layers (default: the architecture's)")
        add("--block-layers", type=positive, metavar="N", help="fully connected layers per block (default: 2)")

    @classmethod
    def settle(cls, args: argparse.Namespace) -> None:
        fill(args, DEFAULTS)
        refuse_structure_without_sites(args)
        super().settle(args)
        check_widths(args, [args.hidden_width])

    @staticmethod
    def inputs_of(shape: Sequence[int]) -> int:
        return math.prod(shape)

    def __init__(self, cfg: Any, inputs: int, classes: int) -> None:
        super().__init__(cfg, inputs, classes)
        width, count = cfg.hidden_width, cfg.hidden_blocks
        # The first layer reads the image, which is not split into streams.
        self.stem = nn.Sequential(nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width), nn.ReLU())
        self.blocks = nn.Sequential(
            *(
                FullyConnectedBlock(
                    cfg, Place(width, "stage1", "ffn", layer, True, layer, count, {"stage1": count}, NORMS[cfg.norm])
                )
                for layer in range(count)
            )
        )
        self.classify = nn.Linear(width, classes)
        nn.init.zeros_(self.classify.bias)
        for linear in (self.stem[0], self.classify):
            he_normal(linear)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.blocks(self.stem(images.flatten(1))))


DEFAULTS: dict[str, Any] = {
    "hidden_blocks": 4,
    "hidden_width": 256,
    "block_layers": 2,
    "two_streams": False,
    "no_shortcut": False,
}
# The combinations are those of Targ 2016's convolutional networks (residual_network.TARG).
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "rir_plain_fc": {"no_shortcut": True},
    "rir_resnet_fc": {},
    "resnet_init_fc": {"no_shortcut": True, "two_streams": True},
    "rir_fc": {"two_streams": True},
}


register_architectures("fully_connected_resid", FullyConnectedNetwork, DEFAULTS, ARCHITECTURES)
