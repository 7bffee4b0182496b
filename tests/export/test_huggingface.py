"""Hugging Face: stock classes give fairseq's log probabilities, translations and ids."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_resid.connections import CannotFold
from fairseq_resid.data.text.segmentation import Segmenter
from fairseq_resid.evaluation import translate
from fairseq_resid.export import huggingface
from fairseq_resid.export.engine import Search, Text
from fairseq_resid.export.translator import Translator
from fairseq_resid.files import read_lines
from support.engines import FOLDING, SETTINGS, as_words, exported, need, speaking, worst_difference
from support.models import DICT, EOS, PAD, build, dictionary, sentences, shaken
from support.shells import shell

ENGINE = "huggingface"
pytestmark = [need(ENGINE), pytest.mark.once]
REFUSED = {  # settings of test_folding that no class supports, with the start of the error message
    "final norm after post-norm": "--final-norm layer: FSMT",
    "no final norm after pre-norm": "--final-norm none: M2M100",
    "no final norm of the decoder": "--final-norm none: M2M100",
    "norm of the embedding": "--layernorm-embedding: FSMT",
    "narrow encoder": "stacks of different widths: FSMT",
}
CLASSES = {"post_norm": "FSMTForConditionalGeneration", "pre_norm": "M2M100ForConditionalGeneration"}


@pytest.mark.parametrize("name", [name for name, (_, graph) in FOLDING.items() if graph in CLASSES])
def test_log_probabilities_equal_those_of_fairseq(name: str, tmp_path: Path) -> None:
    options, graph = FOLDING[name]
    model = shaken(build(residual=name, **options), 7, 0.1)
    engine = exported(ENGINE, model, tmp_path)
    assert type(engine.model).__name__ == CLASSES[graph]
    assert worst_difference(engine, model) < 2e-5
    assert {file.stat().st_mode for file in tmp_path.iterdir()} == {(tmp_path / "config.json").stat().st_mode}


@pytest.mark.parametrize("name", SETTINGS)
def test_fairseq_setting_is_exported_or_refused(name: str, tmp_path: Path) -> None:
    settings, task = SETTINGS[name]
    model = shaken(build(task=task, **settings), 7, 0.1)
    if name not in REFUSED:
        assert worst_difference(exported(ENGINE, model, tmp_path, task), model, task) < 2e-5
        return
    with pytest.raises(CannotFold) as refused:
        exported(ENGINE, model, tmp_path, task)
    assert str(refused.value).startswith(REFUSED[name]) and str(refused.value).endswith("; use --to onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"residual": "sandwich_ln"}, "--residual sandwich_ln: no class in transformers has two norms"),
        ({"residual": "sas"}, "--residual sas: "),
        ({"residual": "pre_ln", "decoder_learned_pos": True}, "positions other than sinusoids: M2M100"),
        ({"residual": "pre_ln", "layernorm_embedding": True}, "--layernorm-embedding: M2M100"),
    ],
    ids=str,
)
def test_unsupported_setting_is_refused_with_one_line(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(CannotFold, match=f"^{reason}[^\n]*; use --to onnx$"):
        exported(ENGINE, build(**settings), tmp_path)
    assert not list(tmp_path.iterdir())


def test_pre_norm_source_dictionary_cannot_exceed_target_dictionary(tmp_path: Path) -> None:
    small, large = (SimpleNamespace(source_dictionary=dictionary(n), target_dictionary=DICT) for n in (40, 60))
    model = shaken(build(task=small, residual="pre_ln"), 7, 0.1)
    assert worst_difference(exported(ENGINE, model, tmp_path / "small", small), model, small) < 2e-5
    with pytest.raises(CannotFold, match="a source dictionary larger than the target dictionary: M2M100"):
        exported(ENGINE, build(task=large, residual="pre_ln"), tmp_path / "large", large)


@pytest.mark.parametrize("residual", ["post_ln", "pre_ln"])
def test_shared_embeddings_are_stored_once(residual: str, tmp_path: Path) -> None:
    sizes = {}
    for is_shared in (False, True):
        model = shaken(build(residual=residual, share_all_embeddings=is_shared), 7, 0.1)
        folder = tmp_path / str(is_shared)
        assert worst_difference(exported(ENGINE, model, folder), model) < 2e-5
        sizes[is_shared] = (folder / "model.safetensors").stat().st_size
    assert sizes[False] - sizes[True] >= 2 * len(DICT) * 64 * 4


@pytest.mark.parametrize("residual", ["xskip_ln", "pre_ln"])
def test_auto_class_loads_the_folder_without_remote_code(residual: str, tmp_path: Path) -> None:
    """Log probabilities equal fairseq's on a batch with left padding."""
    model = shaken(build(residual=residual), 7, 0.1)
    exported(ENGINE, model, tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    assert [file.name for file in tmp_path.iterdir() if file.suffix in (".bin", ".pt", ".py", ".pkl")] == []
    loaded, info = huggingface.library().AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, local_files_only=True, output_loading_info=True
    )
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    source = torch.tensor([[PAD, PAD, 7, 9, EOS], [4, 5, 6, 8, EOS]])
    previous = torch.tensor([[EOS, 9, 10], [EOS, 11, 12]])
    with torch.no_grad():
        expected = model(source, torch.tensor([3, 5]), previous)[0].log_softmax(-1)
        mask = (source != PAD).long()
        found = loaded(input_ids=source, attention_mask=mask, decoder_input_ids=previous, use_cache=False).logits
    assert (found.log_softmax(-1) - expected).abs().max() < 2e-5


def test_prefixes_may_differ_in_length(tmp_path: Path) -> None:
    engine = exported(ENGINE, speaking(), tmp_path)
    sources, prefixes = as_words(sentences(4, (5, 5, 5))), as_words(sentences(5, (0, 3, 1)))
    search = Search(4, 0.6, 1, 6)
    together = engine.translate(sources, search, prefixes)
    alone = [engine.translate([s], search, [p])[0] for s, p in zip(sources, prefixes, strict=True)]
    assert [each[0].tokens for each in together] == [each[0].tokens for each in alone]
    assert all(list(each[0].tokens[: len(p)]) == p for each, p in zip(together, prefixes, strict=True))
    assert together[0][0].tokens == engine.translate(sources[:1], search)[0][0].tokens


@pytest.mark.parametrize("residual", ["deep_norm", "pre_ln"])
@pytest.mark.parametrize("quantization", ["float16", "bfloat16"])
def test_half_precision_is_close_and_half_as_large(residual: str, quantization: str, tmp_path: Path) -> None:
    model = build(residual=residual)
    whole, small = tmp_path / "float32", tmp_path / "half"
    exported(ENGINE, model, whole)
    engine = exported(ENGINE, model, small, quantization=quantization)
    assert 0 < worst_difference(engine, model) < 0.5
    assert (small / "model.safetensors").stat().st_size < 0.55 * (whole / "model.safetensors").stat().st_size
    assert engine.translate([["w1", "w2"]], Search(max_len_b=4))


def tokenizer(folder: Path, **options: Any) -> Any:
    return huggingface.library().AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)


def written(folder: Path, text: Text, model: Path | None, *dictionaries: Any) -> Path:
    """Write an export of a small model for the given dictionaries."""
    task = SimpleNamespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[-1])
    folder.mkdir()
    if model is not None and text.model is not None:
        shutil.copy(model, folder / text.model)
    exported(ENGINE, build(task=task, residual="post_ln"), folder, task, text=text)
    return folder


def pieces_of(corpus: Path, side: str) -> tuple[list[str], list[list[str]]]:
    """Return lines of the corpus, some of them unusual, and their subwords."""
    lines = [line for split in ("valid", "test") for line in read_lines(corpus / "ref" / f"{split}.{side}")]
    lines += ["", "  two   spaces ", "ＦＵＬＬ ﬁ", "日本語 x", "<unk> a </s> b <pad>", "a\u00a0b"]
    return lines, Segmenter("sentencepiece", corpus / "spm.model").encode(lines)


SENTENCEPIECE = Text("en", "xx", post_process="sentencepiece", model="spm.model")


def test_tokenizer_gives_the_same_ids_as_fairseq(corpus: Path, tmp_path: Path) -> None:
    words = Dictionary.load(str(corpus / "dict.en.txt"))
    folder = written(tmp_path / "out", SENTENCEPIECE, corpus / "spm.model", words)
    made = tokenizer(folder)
    assert type(made).__name__ == "MarianTokenizer" and len(made) == len(words)
    for side in ("en", "xx"):
        lines, pieces = pieces_of(corpus, side)
        expected = [words.encode_line(" ".join(each), add_if_not_exist=False).tolist() for each in pieces]
        assert (made(lines) if side == "en" else made(text_target=lines)).input_ids == expected
        restored = made.batch_decode(expected[:40], skip_special_tokens=True)
        assert restored == [Segmenter("sentencepiece", corpus / "spm.model").join(" ".join(p)) for p in pieces[:40]]


def test_tokenizer_has_two_vocabularies_if_the_dictionaries_differ(corpus: Path, tmp_path: Path) -> None:
    lines, pieces = pieces_of(corpus, "en")
    first, second = Dictionary(), Dictionary()
    for number, piece in enumerate(dict.fromkeys(piece for each in pieces for piece in each)):
        if number % 7:
            first.add_symbol(piece)
    for piece in reversed(first.symbols[4:-5]):
        second.add_symbol(piece)
    made = tokenizer(written(tmp_path / "out", SENTENCEPIECE, corpus / "spm.model", first, second))
    for words, found in ((first, made(lines)), (second, made(text_target=lines))):
        expected = [words.encode_line(" ".join(each), add_if_not_exist=False).tolist() for each in pieces]
        assert found.input_ids == expected and any(3 in ids for ids in expected)
    assert made.decode([second.index(pieces[0][1]), 2], skip_special_tokens=True) == pieces[0][1].replace("▁", "")


def test_segmented_text_is_looked_up_word_by_word(tmp_path: Path) -> None:
    words, others = Dictionary(), Dictionary()
    for word in ("co@@", "tton", "a", "truck", ",@@"):
        words.add_symbol(word)
        others.add_symbol(word.upper())
    lines = ["a co@@ tton truck", "a  unknown@@ truck", ",@@ a </s> ,@@", ""]
    expected = [words.encode_line(line, add_if_not_exist=False).tolist() for line in lines]
    made = tokenizer(written(tmp_path / "bpe", Text("a", "b", post_process="subword_nmt"), None, words))
    assert made(lines).input_ids == expected and words.unk() in expected[1]
    assert made.batch_decode(expected[:1], skip_special_tokens=True) == ["a cotton truck"]
    assert made.decode(words.encode_line(",@@ a co@@").tolist(), skip_special_tokens=True) == ",a co"
    folder = written(tmp_path / "two", Text("a", "b"), None, words, others)
    target = tokenizer(folder, subfolder="target")
    assert tokenizer(folder)(lines[0]).input_ids == expected[0]
    assert target.decode(target("A CO@@ TTON").input_ids, skip_special_tokens=True) == "A CO@@ TTON"


@pytest.fixture
def folder(exported_to: Callable[[str], Path]) -> Path:
    """Return the exported run of conftest.py; tests must not change it."""
    return exported_to(ENGINE)


@pytest.mark.parametrize("layers", [1, 3])
def test_weights_that_do_not_match_config_json_are_refused(
    layers: int, folder: Path, tmp_path: Path, capfd: Any
) -> None:
    """transformers initialises missing weights at random and only logs a report of many lines."""
    copied = shutil.copytree(folder, tmp_path / "copied")
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "encoder_layers": layers}))
    assert translate.main([str(copied)]) == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert f"error: {copied / 'model.safetensors'}: model.encoder.layers." in error


def test_readme_code_translates_without_this_package(
    folder: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code runs without a network, without fairseq and without torchaudio, which fairseq requires."""
    text = (folder / "README.md").read_text()
    assert "expects raw text" in text and "A source has at most 1,024 tokens" in text
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[-1]
    assert "from_pretrained" in code and len(code.splitlines()) == 4
    lines = read_lines(corpus / "ref" / "test.en")[:8]
    code = code.replace('"DIR"', repr(str(folder))).replace('["A sentence."]', repr(lines))
    blocked = "import sys\nfor name in ('fairseq', 'fairseq_resid', 'torchaudio'): sys.modules[name] = None\n"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    output = shell(sys.executable, "-c", blocked + code, cwd=folder)
    assert output.strip() == repr(Translator(folder).translate(lines))
