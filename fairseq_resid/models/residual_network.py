"""Residual networks for images: pre-activation ResNets, the other orders of He 2016b, and ResNet in ResNet.

A block is a branch of convolutions and a site that joins it to the shortcut. Its parts come in one of five orders:

    full_preact       BN ReLU conv, BN ReLU conv; join
    relu_preact       ReLU conv BN, ReLU conv BN; join
    original          conv BN ReLU, conv BN; join, ReLU
    bn_after_add      conv BN ReLU, conv; join, BN ReLU
    relu_before_add   conv BN ReLU, conv BN ReLU; join            Source: He 2016b, figure 4
"""

from __future__ import annotations

import argparse
from typing import Any

from fairseq.models import register_model
from torch import Tensor, nn

from .. import connections
from ..connections import Place
from ..fairseq_patches import UserError
from .classifier import (
    NORMS,
    ImageClassifier,
    build_site,
    fill,
    first,
    he_normal,
    last,
    refuse_structure_without_sites,
    register_architectures,
)
from .structures import check_widths, positive
from .two_streams import TwoStreamConv2d

ORDERS = ("full_preact", "relu_preact", "original", "bn_after_add", "relu_before_add")
EXPANSION = 4  # factor by which a bottleneck's last convolution increases the number of channels
# In the backward pass of a strided 1x1 convolution with 2 to 6 input channels in channels-last memory, the AVX2 kernels
# of oneDNN 3.12 (in torch 2.13) write past their buffers.
SAFE_CHANNELS = 8


def integers(text: str) -> str:
    """Check that a flag's value is a list of positive integers with commas, such as 9,9,9."""
    for part in text.split(","):
        positive(part)
    return text


def norm_relu(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU()]


def arranged(convolutions: list[nn.Conv2d], order: str, has_first: bool) -> nn.Sequential:
    """Return a branch: convolutions with norms and ReLUs in one of ORDERS.

    has_first: whether the norm and the ReLU before the first convolution are part of the branch
    """
    parts: list[nn.Module] = []
    for number, convolution in enumerate(convolutions):
        is_last = number == len(convolutions) - 1
        if order == "full_preact":
            parts += [*(norm_relu(convolution.in_channels) if number or has_first else ()), convolution]
        elif order == "relu_preact":
            parts += [
                *([nn.ReLU()] if number or has_first else ()),
                convolution,
                nn.BatchNorm2d(convolution.out_channels),
            ]
        elif not is_last:
            parts += [convolution, *norm_relu(convolution.out_channels)]
        else:
            after = {"original": 1, "bn_after_add": 0, "relu_before_add": 2}[order]
            parts += [convolution, *norm_relu(convolution.out_channels)[:after]]
    return nn.Sequential(*parts)


class NarrowProjection(nn.Conv2d):
    """A strided 1x1 convolution, computed as a 1x1 convolution of every `step`-th position: see SAFE_CHANNELS.

    Shapes: (N, in, H, W) -> (N, out, ceil(H / step), ceil(W / step))
    """

    def __init__(self, inputs: int, outputs: int, step: int) -> None:
        super().__init__(inputs, outputs, 1, bias=False)
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x[:, :, :: self.step, :: self.step], self.weight, None)


class Block(nn.Module):
    """A branch of convolutions, and the site `residual` that joins it to its shortcut.

    Formula:  y = after(site(p(x), branch(x))), p the identity, or a convolution where the shape changes
    Shapes:   (N, in, H, W) -> (N, out, H / stride, W / stride)
    Where the shape changes, and in the first block of the network, the pre-activation comes before both the shortcut
    and the branch. Where the shape changes, the norm of a structure that normalises the branch's input (pre_ln) would
    have the wrong width, so these blocks use x + F, and so do those of b2t. In b2t, keel and mix_ln, they lack the norm
    of the sum. Without shortcuts (`rir_cnn`, `resnet_init`), a block consists of its branch alone.
    """

    def __init__(self, cfg: Any, place: Place, inputs: int, stride: int, is_first: bool) -> None:
        super().__init__()
        outputs = place.dim
        changes = inputs != outputs or stride != 1
        convolution = TwoStreamConv2d if cfg.two_streams else nn.Conv2d
        if cfg.bottleneck:
            width = outputs // EXPANSION
            sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            sizes = [(inputs if not number else outputs, outputs, 3, stride if not number else 1)
                     for number in range(cfg.block_layers)]  # fmt: skip
        branch = [convolution(read, made, kernel, step, kernel // 2, bias=False) for read, made, kernel, step in sizes]
        for each in branch:
            he_normal(each)
        has_ahead = cfg.block_order in ("full_preact", "relu_preact")
        shares = has_ahead and (changes or is_first)
        ahead = norm_relu(inputs) if cfg.block_order == "full_preact" else [nn.ReLU()]
        self.ahead = nn.Sequential(*ahead) if shares else nn.Identity()
        self.branch = arranged(branch, cfg.block_order, not shares)
        after: dict[str, list[nn.Module]] = {"original": [nn.ReLU()], "bn_after_add": norm_relu(outputs)}
        self.after = nn.Sequential(*after.get(cfg.block_order, []))
        self.projection: nn.Module | None = None
        self.residual: connections.ResidualConnection | None = None
        if cfg.no_shortcut:
            return
        reads = connections.structure(cfg.residual).connection.branch_input
        if changes:
            kernel = cfg.projection_kernel
            if kernel == 1 and stride > 1 and inputs < SAFE_CHANNELS:
                projection: nn.Conv2d = NarrowProjection(inputs, outputs, stride)
            else:
                projection = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
            he_normal(projection)
            self.projection = projection
        is_plain = changes and reads is not connections.ResidualConnection.branch_input
        self.residual = build_site(cfg, place, "xskip" if is_plain else None)
        self.residual.init_branch(**{f"conv{number}": each for number, each in enumerate(branch, start=1)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.ahead(x)
        if self.residual is None:
            return self.after(self.branch(x))
        if self.projection is not None:
            y = self.residual(last(self.projection(x)), last(self.branch(x)))
        else:
            state = last(x)
            y = self.residual(state, last(self.branch(first(self.residual.branch_input(state)))))
        return self.after(first(y))


@register_model("resnet_resid")
class ResidualNetwork(ImageClassifier):
    """A residual network with a choice of residual structure: --arch preact_resnet110 --residual NAME.

    Source: He 2016b; Targ 2016 for the architectures `rir...` and `resnet_init...`
    """

    @classmethod
    def add_args(cls, parser: Any) -> None:
        cls.add_image_flags(parser)
        add = parser.add_argument
        add(
            "--stage-blocks",
            type=integers,
            metavar="N,N,...",
            help="blocks of each stage (default: the architecture's)",
        )
        add(
            "--stage-channels",
            type=integers,
            metavar="C,C,...",
            help="channels of each stage (default: the architecture's)",
        )
        add("--block-layers", type=positive, metavar="N", help="3x3 convolutions per block (default: 2)")
        add("--block-order", choices=ORDERS, help="order of a block's parts (default: the architecture's)")

    @classmethod
    def settle(cls, args: argparse.Namespace) -> None:
        layers = getattr(args, "block_layers", None)
        fill(args, DEFAULTS)
        refuse_structure_without_sites(args)
        if args.bottleneck and layers not in (None, DEFAULTS["block_layers"]):
            raise UserError(f"--block-layers {layers}: a bottleneck always has three convolutions; omit the flag")
        super().settle(args)
        blocks, channels = (value.split(",") for value in (args.stage_blocks, args.stage_channels))
        if len(blocks) != len(channels):
            raise UserError(
                f"--stage-blocks {args.stage_blocks} and --stage-channels {args.stage_channels}: different numbers of "
                "stages; must be equal"
            )
        widths = list(map(int, channels))
        if args.bottleneck and any(width % EXPANSION for width in widths):
            raise UserError(
                f"--stage-channels {args.stage_channels}: must be multiples of {EXPANSION} with bottlenecks"
            )
        check_widths(args, widths)

    def __init__(self, cfg: Any, channels: int, classes: int) -> None:
        super().__init__(cfg, channels, classes)
        blocks, widths = ([int(part) for part in each.split(",")] for each in (cfg.stage_blocks, cfg.stage_channels))
        depths = {f"stage{number}": count for number, count in enumerate(blocks, start=1)}
        stem = widths[0] // EXPANSION if cfg.bottleneck else widths[0]
        self.stem = nn.Conv2d(channels, stem, 3, padding=1, bias=False)
        he_normal(self.stem)
        has_ahead = cfg.block_order in ("full_preact", "relu_preact")
        self.start = nn.Sequential(*([] if has_ahead else norm_relu(stem)))
        self.stages = nn.ModuleList()
        inputs = stem
        for number, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            stack = f"stage{number + 1}"
            stage = []
            for layer in range(count):
                place = Place(width, stack, "conv", layer, True, layer, count, depths, NORMS[cfg.norm])
                stride = 2 if number and not layer else 1
                stage.append(Block(cfg, place, inputs, stride, not number and not layer))
                inputs = width
            self.stages.append(nn.Sequential(*stage))
        ends: dict[str, list[nn.Module]] = {"full_preact": norm_relu(inputs), "relu_preact": [nn.ReLU()]}
        self.end = nn.Sequential(*ends.get(cfg.block_order, []))
        self.classify = nn.Linear(inputs, classes, bias=not cfg.no_class_bias)
        if cfg.msr_classifier:
            he_normal(self.classify)
        if self.classify.bias is not None:
            nn.init.zeros_(self.classify.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = self.start(self.stem(images))
        for stage in self.stages:
            x = stage(x)
        return self.classify(self.end(x).mean(dim=(2, 3)))


# Defaults for the values that neither an architecture nor a flag sets.
DEFAULTS: dict[str, Any] = {
    "stage_blocks": "3,3,3",
    "stage_channels": "16,32,64",
    "block_layers": 2,
    "block_order": "full_preact",
    "bottleneck": False,
    "two_streams": False,
    "no_shortcut": False,
    "projection_kernel": 1,
    "no_class_bias": False,
    "msr_classifier": False,  # False: torch's default, as in He 2016b's code
}
# He 2016b: 6n + 2 layers; with bottlenecks 9n + 2, and four times the channels.
PREACT: dict[str, dict[str, Any]] = {
    **{f"preact_resnet{6 * n + 2}": {"stage_blocks": f"{n},{n},{n}"} for n in (3, 5, 7, 9, 18)},
    **{
        f"preact_resnet{9 * n + 2}": {
            "stage_blocks": f"{n},{n},{n}", "stage_channels": "64,128,256", "bottleneck": True,
        } for n in (18, 111)
    },
}  # fmt: skip
# Targ 2016, figure 2: with or without generalised blocks, and with or without the block's own shortcut.
TARG = {
    "rir_cnn": {"no_shortcut": True},
    "rir_resnet": {},
    "resnet_init": {"no_shortcut": True, "two_streams": True},
    "rir": {"two_streams": True},
}
# Section 3: "MSR initialization was used for all weight tensors".
NARROW = {"stage_blocks": "5,5,5", "block_order": "original", "projection_kernel": 3, "msr_classifier": True}
WIDE = {**NARROW, "stage_blocks": "2,3,3", "stage_channels": "96,192,384", "no_class_bias": True}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    **PREACT,
    **{name: {**NARROW, **kind} for name, kind in TARG.items()},
    **{f"{name}_wide": {**WIDE, **kind} for name, kind in TARG.items()},
}


register_architectures("resnet_resid", ResidualNetwork, DEFAULTS, ARCHITECTURES)
