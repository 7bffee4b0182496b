"""The image_classification criterion: cross-entropy, with accuracy and error in the log."""

from __future__ import annotations

import math
from typing import Any

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics

from ..data.images.image_folder import TASK


@register_criterion(TASK)
class ImageClassificationCriterion(FairseqCriterion):  # type: ignore[misc]
    """Cross-entropy of the class of every image.

    Formula:  −ln p(class | image), summed; the sample size is the number of images
    Logged:   loss, in bits as fairseq logs every loss; accuracy and error, in percent of the images
    """

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Any, int, dict[str, Any]]:
        log_probabilities = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
        target = sample["target"]
        loss = torch.nn.functional.nll_loss(log_probabilities, target, reduction="sum" if reduce else "none")
        right = log_probabilities.argmax(dim=-1).eq(target).sum()
        size = target.numel()
        logged = {
            "loss": loss.data,
            "n_correct": right.data,
            "ntokens": size,
            "nsentences": size,
            "sample_size": size,
        }
        return loss, size, logged

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the means over all devices."""
        totals = {
            name: sum(float(one.get(name, 0)) for one in logging_outputs)
            for name in ("loss", "n_correct", "sample_size")
        }
        size = totals["sample_size"]
        if not size:
            return
        accuracy = 100 * totals["n_correct"] / size
        metrics.log_scalar("loss", totals["loss"] / size / math.log(2), size, round=3)
        metrics.log_scalar("accuracy", accuracy, size, round=2)
        metrics.log_scalar("error", 100 - accuracy, size, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
