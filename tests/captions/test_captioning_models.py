"""The captioning model with every structure: formulas of its input, padding, incremental decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_MODEL_INV_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator

import structure_table
from fairseq_resid.connections import sites
from fairseq_resid.models.captioning import RegionProjection
from support import models
from support.captioning_models import TASK, WIDTH, build, captions, images, logits
from support.models import DICT, EOS, PAD, close
from support.structures import each


def test_projection_adds_features_and_box_with_area() -> None:
    projection = RegionProjection(WIDTH, 5)
    (region,) = images((1,))[0][0]
    left, top, right, bottom = region[-4:]
    box = torch.stack([left, top, right, bottom, (right - left) * (bottom - top)])
    expected = projection.features.weight @ region[:WIDTH] + projection.boxes.weight @ box + projection.features.bias
    close(projection(region.view(1, 1, -1))[0, 0], expected)


@each
def test_padding_and_order_of_regions_change_nothing(name: str) -> None:
    model, previous = build(residual=name), captions()
    regions, lengths = images()
    together = logits(model, regions, lengths, previous)
    for row, length in enumerate(lengths.tolist()):
        alone = regions[row : row + 1, :length]
        close(together[row], logits(model, alone, lengths[row : row + 1], previous[row : row + 1])[0])
        close(together[row], logits(model, alone.flip(1), lengths[row : row + 1], previous[row : row + 1])[0])
    regions[2, 2:] = 9.0  # values at padding
    close(logits(model, regions, lengths, previous), together)


@each
def test_incremental_decoding_equals_the_whole_caption(name: str) -> None:
    model, previous, (regions, lengths) = build(residual=name), captions(), images()
    whole = logits(model, regions, lengths, previous)
    state: dict[str, Any] = {}
    with torch.no_grad():
        encoded = model.encoder(regions, lengths)
        for step in range(previous.size(1)):
            now = model.decoder(previous[:, : step + 1], encoder_out=encoded, incremental_state=state)[0]
            close(now[:, -1], whole[:, step])


@each
def test_every_parameter_learns(name: str) -> None:
    model = build(residual=name).train()
    regions, lengths = images()
    previous = captions()
    target = torch.cat([previous[:, 1:], torch.full((3, 1), EOS)], dim=1)
    sample = {
        "net_input": {"src_tokens": regions, "src_lengths": lengths, "prev_output_tokens": previous},
        "target": target, "ntokens": target.numel(), "nsentences": 3,
    }  # fmt: skip
    LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1)(model, sample)[0].backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        if not parameter_name.endswith("k_proj.bias"):
            assert parameter.grad.abs().sum() > 0, parameter_name
    assert len(sites(model)) == 2 * 2 + 2 * 3


@pytest.mark.parametrize("arch", ["captioning_sas_tiny", "captioning_rskip_ln_tiny"])
def test_beam_search_does_not_depend_on_the_batch(arch: str) -> None:
    model, (regions, lengths) = build(arch), images()
    generator = SequenceGenerator([model], DICT, beam_size=4, max_len_a=0, max_len_b=8)

    def found(regions: torch.Tensor, lengths: torch.Tensor) -> Any:
        with torch.no_grad():
            return generator.generate([model], {"net_input": {"src_tokens": regions, "src_lengths": lengths}})

    for row, hypotheses in enumerate(found(regions, lengths)):
        length = int(lengths[row])
        alone = found(regions[row : row + 1, :length], lengths[row : row + 1])[0]
        for a, b in zip(hypotheses, alone, strict=True):
            assert torch.equal(a["tokens"], b["tokens"])
            close(a["score"], b["score"])


def test_named_architectures_have_the_size_of_base() -> None:
    families = ("captioning_resid", "captioning_sas", "captioning_rskip_ln")
    assert set(ARCH_MODEL_INV_REGISTRY["captioning_resid"]) == {*families, *(f"{each}_tiny" for each in families)}
    counts = {}
    for arch in families:
        args = models.settings(arch)
        assert (args.encoder_embed_dim, args.decoder_ffn_embed_dim, args.decoder_layers) == (512, 2048, 6)
        with torch.device("meta"):
            counts[arch] = models.parameters(ARCH_MODEL_REGISTRY[arch].build_model(args, TASK))
    assert counts["captioning_sas"] - counts["captioning_resid"] == 31_518_780  # as in translation
    assert counts["captioning_rskip_ln"] - counts["captioning_resid"] == 30_720
    assert structure_table.added_parameters("sas", 512) == 31_518_780


def test_first_pass_of_admin_reads_regions() -> None:
    model, again, closed = (build(residual="admin", admin_start=start) for start in ("profiled", "profiled", "closed"))
    pairs = zip(model.parameters(), closed.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_retained_dropout_reaches_the_encoder() -> None:
    model = build(dropout=0.9)
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=["TransformerEncoder"])
    inputs = (*images(), captions())
    assert not torch.allclose(logits(model, *inputs), logits(model, *inputs))
    assert PAD == 1
