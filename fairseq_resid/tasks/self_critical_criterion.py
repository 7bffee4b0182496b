"""The self_critical criterion: train a captioning model on the CIDEr of captions that it samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics
from torch import Tensor

from ..cli.frame import integer
from ..fairseq_patches import UserError
from ..models.likelihood import token_nll
from .captions import SELF_CRITICAL, ImageCaptioningTask
from .cider import Cider


def unwritten(words: Any) -> list[int]:
    """Return the special symbols that a caption never contains."""
    return [words.bos(), words.pad(), words.unk()]


@torch.no_grad()
def write_captions(model: Any, net_input: dict[str, Any], words: Any, longest: int, samples: int | None) -> Tensor:
    """Return captions of at most `longest` tokens for every image: (B · samples, T).

    A caption ends with EOS, followed by padding, unless it is cut off at `longest` tokens. The model is in eval mode
    while it writes the captions. It never writes <unk> or fairseq's other special symbols, except EOS.
    samples: number of captions sampled for each image, whose rows are adjacent; None: the greedy caption
    """
    was_training = model.training
    model.eval()
    encoded = model.encoder(net_input["src_tokens"], net_input["src_lengths"])
    order = torch.arange(len(net_input["src_lengths"]), device=net_input["src_tokens"].device)
    order = order.repeat_interleave(samples or 1)
    encoded = model.encoder.reorder_encoder_out(encoded, order)
    tokens = order.new_full((len(order), 1), words.eos())
    ended, state = torch.zeros_like(order, dtype=torch.bool), dict[str, Any]()
    while tokens.size(1) <= longest and not ended.all():
        output = model.decoder(tokens, encoder_out=encoded, incremental_state=state)
        probabilities = model.get_normalized_probs(output, log_probs=False)[:, -1].float()
        probabilities[:, unwritten(words)] = 0
        chosen = probabilities.argmax(1) if samples is None else torch.multinomial(probabilities, 1).squeeze(1)
        tokens = torch.cat([tokens, chosen.masked_fill(ended, words.pad()).unsqueeze(1)], dim=1)
        ended |= chosen.eq(words.eos())
    model.train(was_training)
    return tokens[:, 1:]


@register_criterion(SELF_CRITICAL)
class SelfCriticalCriterion(FairseqCriterion):  # type: ignore[misc]
    """Policy gradient with the CIDEr-D of sampled captions as reward.

    Formula:  −Σ_i (r_i − b_i) ln p(c_i | image) over the samples c_i of every image, with reward r_i;
              b_i: the mean reward of the other samples of the image; p: the distribution from which c_i is sampled,
              in which <unk> and fairseq's other special symbols, except EOS, have no probability. The sample size is
              the number of sampled words
    Source:   Rennie et al. 2017, with the baseline of Luo 2020 instead of the greedy caption.
              The reward is CIDEr-D with the document frequencies of the training captions. EOS counts as a word, so
              that incomplete captions have a lower reward.
    Logged:   cider, 100 times the mean reward of the samples, or of the greedy captions in validation;
              in validation, loss and nll_loss are the NLL of the first caption of every image, in bits
    """

    @staticmethod
    def add_args(parser: Any) -> None:
        add = parser.add_argument
        add(
            "--sampled-captions",
            type=integer(2),
            default=5,
            metavar="N",
            help="sampled captions per image (default: 5)",
        )
        add(
            "--sampled-length",
            type=integer(1),
            default=20,
            metavar="N",
            help="longest sampled caption (default: 20 words)",
        )

    def __init__(self, task: Any, sampled_captions: int, sampled_length: int) -> None:
        super().__init__(task)
        if not isinstance(task, ImageCaptioningTask):
            raise UserError(f"--criterion {SELF_CRITICAL}: needs --task image_captioning")
        self.samples, self.longest = sampled_captions, sampled_length
        self.cider: Cider | None = None

    def rewards(self, captions: Tensor, references: Sequence[Sequence[list[int]]], samples: int) -> Tensor:
        """Return the CIDEr-D of every caption; there are `samples` captions for each image."""
        if self.cider is None:
            split = getattr(self.task.args, "train_subset", "train")
            dataset = self.task.datasets.get(split) or self.task.read_split(split, by_image=True)
            self.cider = Cider([text.tolist() for text in texts] for texts in dataset.captions)
        pad = self.task.words.pad()
        rows = [[token for token in row if token != pad] for row in captions.tolist()]
        found = [self.cider.score(row, references[place // samples]) for place, row in enumerate(rows)]
        return torch.tensor(found, device=captions.device)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Any, int, dict[str, Any]]:
        net_input, words, references = sample["net_input"], self.task.words, sample["references"]
        samples = self.samples if model.training else None
        captions = write_captions(model, net_input, words, self.longest, samples)
        rewards = self.rewards(captions, references, samples or 1)
        if samples is None:
            nll = token_nll(model, net_input, sample["target"], words.pad()).sum()
            loss, size = nll, sample["ntokens"]
        else:
            by_image = rewards.view(-1, samples)
            advantages = (samples * by_image - by_image.sum(1, keepdim=True)) / (samples - 1)
            previous = captions.roll(1, 1)
            previous[:, 0] = words.eos()
            repeated = {name: net_input[name].repeat_interleave(samples, 0) for name in ("src_tokens", "src_lengths")}
            net_input = {**repeated, "prev_output_tokens": previous}
            nll = token_nll(model, net_input, captions, words.pad(), unwritten(words))
            loss, size = (advantages.view(-1, 1) * nll).sum(), int(captions.ne(words.pad()).sum())
        logged = {
            "loss": loss.data,
            "cider": float(rewards.sum()),
            "captions": len(rewards),
            "ntokens": size,
            "nsentences": sample["nsentences"],
            "sample_size": size,
        }
        return loss, size, logged

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the means over all devices."""
        names = ("loss", "cider", "captions", "sample_size")
        totals = {name: sum(float(one.get(name, 0)) for one in logging_outputs) for name in names}
        if totals["sample_size"]:
            bits = totals["loss"] / totals["sample_size"] / math.log(2)
            for name in ("loss", "nll_loss"):
                metrics.log_scalar(name, bits, totals["sample_size"], round=3)
            metrics.log_scalar("cider", 100 * totals["cider"] / totals["captions"], totals["captions"], round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
