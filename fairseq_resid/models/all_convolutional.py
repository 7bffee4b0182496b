"""ALL-CNN-C with batch normalisation: a plain network, optionally with ResNet Init."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq.models import register_model
from torch import Tensor, nn

from .classifier import ImageClassifier, he_normal, register_architectures
from .two_streams import TwoStreamConv2d

# Channels, kernel, stride, padding, and dropout after the layer. Springenberg 2014, table 1 and section 3.1.
LAYERS = (
    (96, 3, 1, 1, 0.0),
    (96, 3, 1, 1, 0.0),
    (96, 3, 2, 1, 0.5),
    (192, 3, 1, 1, 0.0),
    (192, 3, 1, 1, 0.0),
    (192, 3, 2, 1, 0.5),
    (192, 3, 1, 0, 0.0),
    (192, 1, 1, 0, 0.0),
)
INPUT_DROPOUT = 0.2


@register_model("all_convolutional")
class AllConvolutionalNetwork(ImageClassifier):
    """ALL-CNN-C: every convolution except the last is followed by BN and ReLU, and the last by the mean over positions.

    --two-streams replaces W with W + I in all convolutions except the first and the last: Targ 2016, table 4. The
    network has no residual sites.
    """

    @classmethod
    def add_args(cls, parser: Any) -> None:
        parser.add_argument(
            "--two-streams", action="store_true", default=None, help="ResNet Init: convolutions use the weight W + I"
        )

    @classmethod
    def settle(cls, args: argparse.Namespace) -> None:
        args.two_streams = bool(getattr(args, "two_streams", None))

    def __init__(self, cfg: Any, channels: int, classes: int) -> None:
        super().__init__(cfg, channels, classes)
        parts: list[nn.Module] = [nn.Dropout(INPUT_DROPOUT)]
        read = channels
        for number, (made, kernel, stride, padding, dropped) in enumerate(LAYERS):
            # The first layer reads the image, which is not split into streams.
            kind = TwoStreamConv2d if cfg.two_streams and number else nn.Conv2d
            parts += [kind(read, made, kernel, stride, padding, bias=False), nn.BatchNorm2d(made), nn.ReLU()]
            parts += [nn.Dropout(dropped)] if dropped else []
            read = made
        self.layers = nn.Sequential(*parts)
        self.classify = nn.Conv2d(read, classes, 1)
        self.apply(he_normal)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.layers(images)).mean(dim=(2, 3))


register_architectures("all_convolutional", AllConvolutionalNetwork, {}, {"all_cnn_c": {}})
