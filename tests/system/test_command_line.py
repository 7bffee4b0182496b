"""fairseq's commands with this plugin: all variants and options, usage errors, features of the stock model."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_resid import connections
from support import structures
from support.models import TASK, sites
from support.trainings import updates

Command = Callable[..., Any]


def flags_of(residual: str, options: dict[str, Any]) -> list[str]:
    given = [[f"--{name.replace('_', '-')}", str(value)] for name, value in options.items()]
    return ["--residual", residual, *itertools.chain(*given)]


def check(train: Command, generate: Command, folder: Path, *flags: object, without: tuple[str, ...] = ()) -> Path:
    """Train for two updates with these flags, decode the validation set and return the checkpoint."""
    done = train(folder, "--max-update", 2, *flags, without=without)
    last = updates(done.output)[-1]
    assert last["num_updates"] == "2" and math.isfinite(float(last["loss"]))
    hypotheses = generate(folder / "checkpoint_last.pt", "--gen-subset", "valid", "--max-len-a", 0.4).hypotheses
    assert sorted(hypotheses) == list(range(43))
    assert all(math.isfinite(score) for score, _ in hypotheses.values())
    return folder / "checkpoint_last.pt"


@structures.each
def test_every_structure_trains_and_generates(name: str, train: Command, generate: Command, tmp_path: Path) -> None:
    file = check(train, generate, tmp_path, "--residual", name)
    model = torch.load(file, weights_only=False)["cfg"]["model"]
    expected = {key: option.default for key, option in connections.options(name).items()} | {"residual": name}
    assert {key: getattr(model, key) for key in expected} == expected


@pytest.mark.once
@structures.each
def test_every_option_reaches_the_sites_and_the_config(name: str) -> None:
    """The settings cover every value of every option. A checkpoint contains the config, from which models are built."""
    for options in [*structures.option_cases(name), *structures.spec(name).variants.values()]:
        parser = fairseq_options.get_training_parser()
        line = ["data", "--task", "translation", "--arch", "transformer_resid_tiny", *flags_of(name, options)]
        args = fairseq_options.parse_args_and_arch(parser, line)
        model = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
        expected = {key: option.default for key, option in connections.options(name).items()} | options
        assert {key: getattr(model.cfg, key) for key in expected} == expected
        assert all(site.described == {"residual": name, **expected} for site in sites(model).values())


# --- mistakes -------------------------------------------------------------------------------------------------------

SAS = ["--arch", "transformer_sas_tiny"]
MISTAKES: list[tuple[list[str], list[str]]] = [
    ([*SAS, "--skip-lambda", "2"], ["--skip-lambda", "sas"]),
    (["--residual", "rskip_ln", "--skip-lambda", "1.5"], ["--skip-lambda", "1.5", "integer"]),
    (["--residual", "sus"], ["--residual", "sus", "sas"]),
    ([*SAS, "--residual", "post_ln"], ["--residual post_ln", "transformer_sas_tiny", "transformer_resid"]),
    (["--encoder-normalize-before"], ["--encoder-normalize-before", "pre_ln"]),
    (["--residual", "post_ln", "--no-decoder-final-norm"], ["--no-decoder-final-norm", "post_ln", "pre_ln"]),
]


@pytest.mark.once
@pytest.mark.parametrize(("flags", "named"), MISTAKES, ids=lambda case: " ".join(case))
def test_mistakes_are_refused_before_anything_is_written(
    flags: list[str], named: list[str], train: Command, tmp_path: Path
) -> None:
    save = tmp_path / "run"
    done = train(save, *flags, check=False)
    assert done.code != 0
    assert "error: " in done.error
    assert [text for text in named if text not in done.error] == []
    assert "Traceback" not in done.output
    assert not save.exists()


# --- commands -------------------------------------------------------------------------------------------------------


def sentencepiece_flags(corpus: Path) -> list[object]:
    return ["--bpe", "sentencepiece", "--sentencepiece-model", corpus / "spm.model"]


def test_interactive_and_hub_translate_as_generate_does(
    sas_checkpoint: Path, corpus: Path, cli: Command, generate: Command
) -> None:
    from fairseq_resid.models import ResidualTransformerModel

    generated = generate(sas_checkpoint, *sentencepiece_flags(corpus))
    raw = (corpus / "ref" / "test.en").read_text().splitlines()[:20]

    flags = ["--beam", 4, "--lenpen", 0.6, "--max-len-a", 1, "--max-len-b", 8, "--buffer-size", 16, "--batch-size", 16]
    languages = ["--source-lang", "en", "--target-lang", "xx", *sentencepiece_flags(corpus)]
    typed = "".join(line + "\n" for line in raw)
    done = cli("fairseq-interactive", corpus, "--path", sas_checkpoint, *flags, *languages, stdin=typed)
    typed_back = done.lines("D")
    assert sorted(typed_back) == list(range(20))

    hub = ResidualTransformerModel.from_pretrained(
        str(sas_checkpoint.parent),
        checkpoint_file=sas_checkpoint.name,
        data_name_or_path=str(corpus),
        bpe="sentencepiece",
        sentencepiece_model=str(corpus / "spm.model"),
    )
    texts = generated.lines("D")
    for number, line in enumerate(raw):
        score, text = texts[number].split("\t")
        assert typed_back[number].split("\t")[1] == text
        assert float(typed_back[number].split("\t")[0]) == pytest.approx(float(score), abs=1e-3)
        assert hub.translate(line, beam=4, lenpen=0.6, max_len_a=1, max_len_b=8) == text
    assert len({text for text in texts.values()}) > 5  # the output differs between inputs


def test_validate_gives_the_loss_of_training(
    sas_checkpoint: Path, corpus: Path, cli: Command, train: Command, tmp_path: Path
) -> None:
    flags = ["--task", "translation", "--batch-size", 16, "--log-format", "json"]
    done = cli("fairseq-validate", corpus, "--path", sas_checkpoint, *flags)
    line = next(line[line.index("{") :] for line in done.output.splitlines() if '"valid_loss"' in line)
    again = shlex.split("--arch transformer_sas_tiny --max-epoch 2 --max-update 0 --no-save --lr 1e-9 --dropout 0")
    resumed = cli(
        "fairseq-train", corpus, *again, "--save-dir", tmp_path, "--finetune-from-model", sas_checkpoint,
        *shlex.split("--optimizer sgd --batch-size 16 --log-format json --share-all-embeddings --max-epoch 1"),
        *shlex.split("--criterion label_smoothed_cross_entropy --label-smoothing 0.1"),
    )  # fmt: skip
    logged = [json.loads(line[line.index("{") :]) for line in resumed.output.splitlines() if '"valid_loss"' in line]
    assert float(json.loads(line)["valid_loss"]) == pytest.approx(float(logged[0]["valid_loss"]), abs=0.02)


def test_ensembles_mix_our_models_with_stock_models(
    sas_checkpoint: Path, stock_checkpoint: Path, generate: Command
) -> None:
    """An ensemble of a model with itself decodes like that model, but an ensemble with the stock model does not."""
    alone = generate(sas_checkpoint, "--gen-subset", "valid").hypotheses
    twice = generate(f"{sas_checkpoint}:{sas_checkpoint}", "--gen-subset", "valid").hypotheses
    for number, (score, text) in alone.items():
        assert twice[number] == (pytest.approx(score, abs=1e-5), text)
    mixed = generate(f"{sas_checkpoint}:{stock_checkpoint}", "--gen-subset", "valid").hypotheses
    assert sorted(mixed) == sorted(alone) and mixed != alone


# Flags, and the default flags that they replace. The tests in models/ cover each of these settings by itself.
FEATURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "embeddings and activations": (
        "--share-decoder-input-output-embed --encoder-learned-pos --decoder-learned-pos --layernorm-embedding "
        "--no-scale-embedding --activation-fn gelu --activation-dropout 0.1 --attention-dropout 0.1",
        ("--share-all-embeddings",),
    ),
    "quant-noise and cross-self-attention": (
        "--checkpoint-activations --quant-noise-pq 0.1 --quant-noise-pq-block-size 8 --no-cross-attention "
        "--cross-self-attention --no-token-positional-embeddings",
        (),
    ),
    "adaptive softmax": (
        "--criterion adaptive_loss --adaptive-softmax-cutoff 40,60 --ddp-backend legacy_ddp",
        ("--share-all-embeddings", "--label-smoothing", "0.1"),
    ),
}


@pytest.mark.parametrize(("flags", "without"), FEATURES.values(), ids=FEATURES)
def test_features_of_stock_transformer_work(
    flags: str, without: tuple[str, ...], train: Command, generate: Command, tmp_path: Path
) -> None:
    check(train, generate, tmp_path, "--arch", "transformer_sas_tiny", *flags.split(), without=without)


def test_activation_checkpointing_draws_the_same_dropout(train: Command, tmp_path: Path) -> None:
    weights = []
    for flags in ([], ["--checkpoint-activations"]):
        folder = tmp_path / str(len(flags))
        train(folder, *flags, "--arch", "transformer_sas_tiny")
        weights.append(torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"])
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        if not name.endswith("._float_tensor"):  # 0.12.2 stores this buffer uninitialised
            # Adam amplifies rounding errors; different dropout would change the weights a hundred times as much.
            torch.testing.assert_close(weights[1][name], tensor, rtol=0, atol=3e-4)


def test_model_trained_with_layerdrop_can_be_pruned_for_decoding(
    train: Command, generate: Command, tmp_path: Path
) -> None:
    file = check(train, generate, tmp_path, *SAS, "--encoder-layerdrop", 0.3, "--decoder-layerdrop", 0.3)
    whole = generate(file, "--gen-subset", "valid").hypotheses
    overrides = "{'encoder_layers_to_keep': '0', 'decoder_layers_to_keep': '1'}"
    pruned = generate(file, "--gen-subset", "valid", "--model-overrides", overrides).hypotheses
    assert sorted(pruned) == sorted(whole) and pruned != whole
    # fairseq would drop every layer of the other stack.
    refused = generate(file, "--model-overrides", "{'encoder_layers_to_keep': '0'}", check=False)
    cause = "encoder_layers_to_keep 0: fairseq would drop all decoder layers; give decoder_layers_to_keep too"
    assert refused.code == 1 and cause in refused.error


# --- stock checkpoints ----------------------------------------------------------------------------------------------

REROUTED = "{'_name': 'transformer_resid', 'arch': 'transformer_resid', 'residual': 'post_ln'}"


ONE_BY_ONE = ["--batch-size", 1, "--gen-subset", "valid", "--num-shards", 4]


@pytest.mark.parametrize("shape", [[], ONE_BY_ONE], ids=["padded", "one by one"])
def test_stock_checkpoint_decodes_as_in_stock(shape: list[object], stock_checkpoint: Path, generate: Command) -> None:
    stock = generate(stock_checkpoint, *shape)
    ours = generate(stock_checkpoint, *shape, "--model-overrides", REROUTED)
    assert "ResidualEncoderLayer" not in stock.output
    assert ours.lines("H") == stock.lines("H") and len(stock.lines("H")) > 8
    assert ours.lines("P") == stock.lines("P")
    assert len({text for _, text in stock.hypotheses.values()}) > 5


def test_override_takes_effect(stock_checkpoint: Path, generate: Command) -> None:
    """If the override had no effect, the test above would compare the stock model with itself."""
    other = REROUTED.replace("post_ln", "xskip_ln").replace("}", ", 'skip_lambda': 1.5}")
    flags = ["--gen-subset", "valid", "--beam", 1]
    ours = generate(stock_checkpoint, *flags, "--model-overrides", other)
    assert ours.lines("H") != generate(stock_checkpoint, *flags).lines("H")


def test_training_starts_from_a_stock_checkpoint(stock_checkpoint: Path, train: Command, tmp_path: Path) -> None:
    losses = []
    for number, flags in enumerate(([], ["--finetune-from-model", stock_checkpoint])):
        done = train(tmp_path / str(number), "--max-update", 1, *flags)
        losses.append(float(updates(done.output)[-1]["loss"]))
    assert losses[1] < losses[0] - 1


def test_parameters_missing_in_a_stock_checkpoint_are_reported(
    stock_checkpoint: Path, train: Command, tmp_path: Path
) -> None:
    done = train(tmp_path / "run", *SAS, "--finetune-from-model", stock_checkpoint, check=False)
    missing = "the checkpoint lacks encoder.layers.0.self_attn_residual.gate.hidden_weight (40 such tensors)"
    assert done.code == 1 and f": {missing}" in done.output[done.output.index("fairseq_resid: error:") :]
    assert "Traceback" not in done.output and list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("more", [[], ["--update-freq", 2], ["--checkpoint-activations"]], ids=str)
def test_coefficients_are_logged_without_changing_training(more: list[Any], train: Command, tmp_path: Path) -> None:
    """The coefficients of every site are logged at every log interval, and training does not change."""
    flags = ["--arch", "transformer_sas_tiny", "--max-update", 5, "--log-interval", 2, *more]
    outputs = [train(tmp_path / name, *flags, *own).output for name, own in (("a", ["--log-coefficients"]), ("b", []))]
    logged, plain = map(updates, outputs)
    assert (
        [row["num_updates"] for row in logged] == [row["num_updates"] for row in plain] == ["2", "4", "5"][: len(plain)]
    )
    for row in logged[:2]:
        means = {key: float(value) for key, value in row.items() if key.startswith("alpha.")}
        assert len(means) == 10 and all(0 < value < 1 for value in means.values())
        assert len([key for key in row if key.startswith(("beta.", "gamma."))]) == 20
    assert [row["loss"] for row in logged] == [row["loss"] for row in plain]
    assert not [key for row in plain for key in row if key.startswith("alpha.")]
    models = [torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=False)["model"] for name in ("a", "b")]
    for key, value in models[0].items():  # 0.12.2 keeps an uninitialised buffer
        assert torch.equal(value, models[1][key]) or key.endswith("_float_tensor"), key
