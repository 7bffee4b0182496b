"""The chunked_label_smoothed_cross_entropy criterion: fairseq's label_smoothed_cross_entropy, computed faster."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.models.transformer import TransformerDecoderBase
from torch import nn

from ..ops import chunked_label_smoothed_cross_entropy
from ..runs.training_command import CHUNKED

logger = logging.getLogger(__name__)


def obstacle(model: Any) -> str:
    """Return why the loss of a model cannot be computed from the features of its decoder; "" if it can.

    model: possibly wrapped by fairseq for several devices
    """
    while isinstance(getattr(model, "module", None), nn.Module):
        if type(model).__name__ == "FullyShardedDataParallel":
            return "FSDP gathers the output weights only inside the model"
        if getattr(model, "find_unused_parameters", False):
            # torch's DDP takes weights that the model did not use for unused, and fails when they receive a gradient.
            return "--find-unused-parameters"
        model = model.module
    decoder = getattr(model, "decoder", None)
    projection = getattr(decoder, "output_projection", None)
    if type(projection) is not nn.Linear or projection.bias is not None or projection._forward_pre_hooks:
        return "the output layer is not a matrix: an adaptive softmax, quantisation noise or another kind of model"
    if getattr(type(decoder), "output_layer", None) is not TransformerDecoderBase.output_layer:
        return f"{type(decoder).__name__} has an output layer of its own"
    if "features_only" not in inspect.signature(model.forward).parameters:
        return f"{type(model).__name__} does not return features"
    return ""


@register_criterion(CHUNKED, dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class ChunkedLabelSmoothedCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):  # type: ignore[misc]
    """The loss, gradients and log of fairseq's label_smoothed_cross_entropy, without the logits of a whole batch.

    Formula:  see ops.chunked_label_smoothed_cross_entropy
    If the model or an option needs the logits of the whole batch, it computes them, as fairseq does, and logs the
    reason once.
    """

    logged: frozenset[str] = frozenset()  # fairseq reads the arguments of a criterion from its __init__

    def reason(self, model: Any) -> str:
        """Return why the loss is computed from the logits of the whole batch; "" if it is not."""
        if self.ignore_prefix_size > 0:
            return "--ignore-prefix-size"
        return "--report-accuracy" if self.report_accuracy else obstacle(model)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Any, int, dict[str, Any]]:
        """Return the summed loss, the sample size and what is logged. Not reduced, it is computed as by fairseq."""
        reason = self.reason(model)
        if reason and reason not in self.logged:
            self.logged = self.logged | {reason}
            logger.info(f"{CHUNKED}: computed as label_smoothed_cross_entropy: {reason}")
        if reason or not reduce:
            result: tuple[Any, int, dict[str, Any]] = super().forward(model, sample, reduce)
            return result
        features, _ = model(**sample["net_input"], features_only=True)
        target = model.get_targets(sample, None)
        is_word = target.ne(self.padding_idx)
        loss, nll = chunked_label_smoothed_cross_entropy(
            features[is_word], model.decoder.output_projection.weight, target[is_word], self.eps
        )
        size = target.size(0) if self.sentence_avg else sample["ntokens"]
        logged = {"ntokens": sample["ntokens"], "nsentences": target.size(0), "sample_size": size}
        return loss, size, {"loss": loss.data, "nll_loss": nll.data, **logged}


# fairseq's trainer resumes a checkpoint only with a criterion whose class has the same name, and its registry accepts a
# name only once, so this class takes fairseq's name after it is registered.
ChunkedLabelSmoothedCrossEntropyCriterion.__name__ = LabelSmoothedCrossEntropyCriterion.__name__
