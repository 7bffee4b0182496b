"""Faults that plant_faults.py plants in fairseq_resid/models."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "rezero: the sites of a layer do not share their scalar",
        "fairseq_resid/models/layers.py",
        "        site.share(first)",
        "        pass",
        "models/test_frozen.py",
    ),
    Fault(
        "places: pruned layers are renumbered",
        "fairseq_resid/models/translation.py",
        'layer = sorted(int(number) for number in kept.split(","))[built] if kept else built',
        "layer = built",
        "models/test_architectures.py",
    ),
    Fault(
        "--final-norm: the decoder's norm is missing",
        "fairseq_resid/models/translation.py",
        'has_norm = getattr(cfg, "final_norm", "none") == "layer" and not (',
        'has_norm = getattr(cfg, "final_norm", "none") == "layer" and stack == "encoder" and not (',
        "models/test_frozen.py",
    ),
    Fault(
        "encoder layer: branch and shortcut of the feed-forward site are exchanged",
        "fairseq_resid/models/layers.py",
        "        x = self.ffn_residual(x, fc_result)\n",
        "        x = self.ffn_residual(fc_result, x)\n",
        "models/test_stock_equality.py",
    ),
    Fault(
        "decoder layer: encoder attention uses the site of self-attention",
        "fairseq_resid/models/layers.py",
        "x = self.encoder_attn_residual(x, attended)",
        "x = self.self_attn_residual(x, attended)",
        "models/test_stock_equality.py",
    ),
    Fault(
        "stock names: the norm of self-attention is loaded into the feed-forward site",
        "fairseq_resid/models/translation.py",
        '"self_attn_layer_norm": "self_attn_residual.norm"',
        '"self_attn_layer_norm": "ffn_residual.norm"',
        "models/test_stock_equality.py",
    ),
    Fault(
        "image models: the first block's pre-activation is applied only in the branch",
        "fairseq_resid/models/residual_network.py",
        "shares = has_ahead and (changes or is_first)",
        "shares = has_ahead and changes",
        "images/test_image_models.py",
    ),
    Fault(
        "image models: LN over rows of the image",
        "fairseq_resid/models/classifier.py",
        "    return x.permute(0, 2, 3, 1)\n",
        "    return x.transpose(1, 3)\n",
        "images/test_image_models.py",
    ),
    Fault(
        "image models: the identity is not added to the weight",
        "fairseq_resid/models/two_streams.py",
        "        return self._conv_forward(x, self.weight + self.identity, self.bias)\n",
        "        return self._conv_forward(x, self.weight, self.bias)\n",
        "images/test_image_models.py",
    ),
    Fault(
        "analysis: NLL counts padding",
        "fairseq_resid/models/likelihood.py",
        "nll.masked_fill(target.eq(padding), 0.0)",
        "nll",
        "analysis/test_analysis.py",
    ),
    Fault(
        "captions: the encoder attends to padding",
        "fairseq_resid/models/captioning.py",
        "places.unsqueeze(0) >= src_lengths.view(-1, 1)",
        "places.unsqueeze(0) > src_lengths.view(-1, 1)",
        "captions/test_captioning_models.py",
    ),
]
