"""Patches for fairseq's own encoder layers."""

from __future__ import annotations

from .patching import wrap

# Copies of every encoder layer's weights that fairseq 0.12.2 keeps for its BetterTransformer path, as parameters that
# never receive a gradient (modules/transformer_layer.py, TransformerEncoderLayerBase.__init__).
BETTER_TRANSFORMER_COPIES = tuple(
    f"{layer}_{kind}" for layer in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")
)


def close_better_transformer_path() -> None:
    """Disable the BetterTransformer path of stock encoder layers in fairseq 0.12.2.

    The layers use it in eval mode after loading, and it crashes on left-padded batches with the torch versions that
    0.12.2 supports: the stock baseline could be trained but not used for decoding. fairseq-fixed has no such path.
    """
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    @wrap(TransformerEncoderLayerBase)
    def __init__(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        if hasattr(self, "can_use_fastpath"):
            self.can_use_fastpath = False
