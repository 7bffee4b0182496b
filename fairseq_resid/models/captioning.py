"""The captioning model: an encoder of image regions in any order, and the decoder of the translation model."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from fairseq.models import register_model
from torch import Tensor, nn

from ..fairseq_patches import UserError
from .profiling import SENTENCES
from .translation import ResidualTransformerEncoder, ResidualTransformerModel

BOX = 4  # last values of a region: left, top, right, bottom, as fractions of the image
PADDING = 1  # fairseq's padding id, by which its encoder recognises padding
REGIONS = 24  # regions per image in the first pass


class RegionProjection(nn.Module):
    """Projects regions to C channels; replaces the source embedding.

    Formula:  x = f W_f + g W_g + b; f: features, g: left, top, right, bottom and area of the box
    Shapes:   (B, S, width + 4) -> (B, S, C)
    Source:   the SAS paper does not describe its input layer. The initial weights are Xavier-uniform; the initial
              bias is 0.
    """

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.embedding_dim, self.padding_idx = dim, PADDING  # read by fairseq's encoder
        self.features, self.boxes = nn.Linear(width, dim), nn.Linear(BOX + 1, dim, bias=False)
        for linear in (self.features, self.boxes):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.features.bias)

    def forward(self, regions: Tensor) -> Tensor:
        regions = regions.to(self.features.weight.dtype)
        width = self.features.in_features
        boxes = regions[..., width:]
        area = (boxes[..., 2:3] - boxes[..., 0:1]) * (boxes[..., 3:4] - boxes[..., 1:2])
        return self.features(regions[..., :width]) + self.boxes(torch.cat([boxes, area], dim=-1))


class RegionEncoder(ResidualTransformerEncoder):
    """The encoder of the translation model, for regions in any order, without positional embeddings or scaling."""

    def __init__(self, cfg, projection: RegionProjection) -> None:  # type: ignore[no-untyped-def]
        super().__init__(cfg, None, projection)
        self.embed_positions, self.embed_scale = None, 1.0
        self.dropout_module.module_name = ResidualTransformerEncoder.__name__  # for --retain-dropout-modules

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ):
        """Return fairseq's dict of encoder outputs.

        Args:
            src_tokens: (B, S, width + 4), features and boxes of the regions
            src_lengths: (B,), number of regions of each image; None if no image has padding
            return_all_hiddens: also return the states of all layers
            token_embeddings: (B, S, C), regions that have been projected already
        """
        marks = torch.zeros(src_tokens.shape[:2], dtype=torch.long, device=src_tokens.device)
        if src_lengths is not None:
            places = torch.arange(src_tokens.size(1), device=src_tokens.device)
            is_padding = places.unsqueeze(0) >= src_lengths.view(-1, 1)
            marks = marks.masked_fill(is_padding, self.padding_idx)
        if token_embeddings is None:
            token_embeddings = self.embed_tokens(src_tokens)
        return self.forward_scriptable(marks, src_lengths, return_all_hiddens, token_embeddings)


@register_model("captioning_resid")
class ResidualCaptioningModel(ResidualTransformerModel):
    """A captioning model with a choice of residual structure: --arch captioning_resid --residual NAME.

    Source: SAS paper, section 4.3, which gives neither sizes nor the input layer; the sizes here are those of Base
    """

    @classmethod
    def build_model(cls, args: Any, task: Any) -> ResidualCaptioningModel:
        """Return a new model for regions as wide as those in the task's data folder.

        Raises: UserError for contradictory options, or a task without regions.
        """
        width = getattr(task, "width", None)
        if width is None:
            raise UserError(f"--arch {getattr(args, 'arch', '')}: a captioning model needs --task image_captioning")
        for name in ("share_all_embeddings", "merge_src_tgt_embed", "encoder_embed_path"):
            if getattr(args, name, None):
                raise UserError(f"--{name.replace('_', '-')}: images have no words; only the decoder has embeddings")
        if isinstance(args, argparse.Namespace):
            args.region_width = width
        model: ResidualCaptioningModel = super().build_model(args, task)
        return model

    @classmethod
    def build_embedding(cls, args, dictionary, embed_dim, path=None):  # type: ignore[no-untyped-def]
        if dictionary is None:
            return RegionProjection(args.region_width, embed_dim)
        return super().build_embedding(args, dictionary, embed_dim, path)

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):  # type: ignore[no-untyped-def]
        return RegionEncoder(cfg, embed_tokens)

    def random_source(self, task: Any, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random regions of SENTENCES images, non-negative as after a ReLU, and their number per image."""
        regions = torch.rand(SENTENCES, REGIONS, task.width + BOX, generator=generator)
        return regions, torch.full((SENTENCES,), REGIONS)
