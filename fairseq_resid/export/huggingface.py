"""Hugging Face transformers: write a model for its stock classes, and translate with them.

    graph       class                              stored in addition to the weights
    post_norm   FSMTForConditionalGeneration       the position tables, including learned and scaled ones
    pre_norm    M2M100ForConditionalGeneration     nothing: its positions are fairseq's sinusoids

Both classes number positions as fairseq does, and neither needs remote code. Neither normalises the embedding, and only
the second has a final norm in each stack.

Their beam search divides scores by the same power of the length (including </s>) as fairseq's, and with
`early_stopping` it ends at the same step. `Rules` adds the rest: the maximum length, the first token, <pad>, and
prefixes.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import records
from .engine import (
    BOS,
    EOS,
    PAD,
    UNK,
    WRITER,
    Hypothesis,
    Record,
    Search,
    batches,
    calling,
    check_lengths,
    quiet,
    symbols,
)

QUANTIZATIONS = ("float32", "float16", "bfloat16")
ACTIVATIONS = {  # fairseq's names and those of transformers
    "relu": "relu",
    "relu_squared": "relu2",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "linear",
}
CLASSES = {"fsmt": "FSMTForConditionalGeneration", "m2m_100": "M2M100ForConditionalGeneration"}
WEIGHTS, CONFIG = "model.safetensors", "config.json"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
SPECIAL = {BOS: 0, PAD: 1, EOS: 2, UNK: 3}
WITHOUT_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
# Settings of each class that differ from its defaults.
MORE: dict[str, dict[str, Any]] = {
    "fsmt": {"forced_eos_token_id": None},
    "m2m_100": {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
}
FORBIDDEN = -1e9  # except for </s>, which gets -inf, because with any finite log p it could end a hypothesis


def write(
    model: Any, source_dictionary: Any, target_dictionary: Any, folder: Path, quantization: str | None = None
) -> None:
    """Write config.json, model.safetensors and the vocabularies of a fairseq Transformer to a folder.

    Raises: ValueError naming the structure or setting that no class can express.
    """
    import torch

    from .folding import fold

    transformers = library()
    vocabularies = [
        {symbol: index for index, symbol in enumerate(symbols(dictionary))}
        for dictionary in (source_dictionary, target_dictionary)
    ]
    folded = fold(model)
    check(model, folded)
    is_post_norm = folded.encoder.graph == "post_norm"
    config, weights = (as_fsmt if is_post_norm else as_m2m_100)(folded)
    config.architectures = [CLASSES[config.model_type]]
    made = getattr(transformers, CLASSES[config.model_type])(config)
    made.load_state_dict(weights, strict=False)  # tied weights are missing
    made.tie_weights()
    with calling("safetensors", folder / WEIGHTS, "cannot write it"):
        made.to(getattr(torch, quantization or "float32")).save_pretrained(folder, max_shard_size="100TB")
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors makes it readable only by its owner
    records.write(folder / VOCABULARY, vocabularies[0])
    if vocabularies[1] != vocabularies[0]:
        records.write(folder / TARGET_VOCABULARY, vocabularies[1])


def library() -> Any:
    """Import and return transformers.

    transformers imports torchaudio if it is installed. fairseq requires torchaudio, but its usual build cannot be
    loaded with a CPU build of torch. We do not need torchaudio, so we hide it if it cannot be loaded.
    """
    if find_spec("torchaudio") is not None:
        try:
            import torchaudio  # noqa: F401
        except (ImportError, OSError):
            sys.modules["torchaudio"] = None  # type: ignore[assignment]
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers


def check(model: Any, folded: Any) -> None:
    """Raise CannotFold naming the structure or setting that neither class supports."""
    from .folding import INSTEAD, CannotFold, structure_of

    both = (folded.encoder, folded.decoder)
    graphs = {stack.graph for stack in both}
    if graphs - {"post_norm", "pre_norm"}:
        named = structure_of(model)
        raise CannotFold(f"--residual {named}: no class in transformers has two norms around a sublayer; {INSTEAD}")
    if len(graphs) > 1:
        raise CannotFold(f"a post-norm and a pre-norm stack: no class in transformers has both; {INSTEAD}")
    is_post_norm = graphs == {"post_norm"}
    widths = {stack.embedding.size(1) for stack in both}
    scales = {stack.scale for stack in both}
    named_class = CLASSES["fsmt" if is_post_norm else "m2m_100"]
    wrong = [
        ("--layernorm-embedding", any(stack.embedding_norm is not None for stack in both)),
        ("--final-norm layer", is_post_norm and any(stack.final_norm is not None for stack in both)),
        ("--final-norm none", not is_post_norm and any(stack.final_norm is None for stack in both)),
        ("learned positions", not is_post_norm and any(stack.learned_positions for stack in both)),
        ("stacks of different widths", len(widths) > 1),
        ("embeddings of different scales", len(scales) > 1),
        (
            f"--activation-fn {folded.encoder.activation}",
            any(stack.activation not in ACTIVATIONS for stack in both),
        ),
        ("a bias of the output projection", folded.projection.bias is not None),
        (
            "a source dictionary larger than the target dictionary",
            not is_post_norm and len(folded.encoder.embedding) > len(folded.decoder.embedding),
        ),
    ]
    for setting, is_set in wrong:
        if is_set:
            raise CannotFold(f"{setting}: {named_class} has no such setting; {INSTEAD}")


def settings(folded: Any) -> dict[str, Any]:
    """Return the settings that the configurations of both classes contain."""
    encoder, decoder = folded.encoder, folded.decoder
    return {
        "activation_function": ACTIVATIONS[encoder.activation],
        "d_model": encoder.embedding.size(1),
        "max_position_embeddings": max(len(encoder.positions), len(decoder.positions)),
        "encoder_layers": len(encoder.layers),
        "encoder_attention_heads": encoder.heads,
        "encoder_ffn_dim": inner_width(encoder),
        "decoder_layers": len(decoder.layers),
        "decoder_attention_heads": decoder.heads,
        "decoder_ffn_dim": inner_width(decoder),
        "scale_embedding": encoder.scale != 1.0,
        "tie_word_embeddings": are_shared(folded),
        **special_tokens(),
        **WITHOUT_DROPOUT,
    }


def inner_width(stack: Any) -> int:
    """Return the number of hidden units of the feed-forward layers; 1 if there are no layers."""
    return next((len(sublayers[-1].linears["fc1"].weight) for sublayers in stack.layers), 1)


def are_shared(folded: Any) -> bool:
    """Return whether the two embeddings and the output projection are all equal."""
    rows = folded.projection.weight
    return all(
        stack.embedding.shape == rows.shape and bool((stack.embedding == rows).all())
        for stack in (folded.encoder, folded.decoder)
    )


def as_fsmt(folded: Any) -> tuple[Any, dict[str, Any]]:
    """Return the configuration and the state dict of FSMTForConditionalGeneration."""
    from torch.nn.functional import pad

    config = library().FSMTConfig(
        src_vocab_size=len(folded.encoder.embedding),
        tgt_vocab_size=len(folded.decoder.embedding),
        **MORE["fsmt"],
        **settings(folded),
    )
    weights = weights_of(folded)
    before, most = SPECIAL[PAD] + 1, config.max_position_embeddings
    for name, stack in (("encoder", folded.encoder), ("decoder", folded.decoder)):
        rows = pad(stack.positions, (0, 0, before, most - len(stack.positions)))
        weights[f"model.{name}.embed_positions.weight"] = rows
    weights["model.decoder.output_projection.weight"] = folded.projection.weight
    return config, weights


def as_m2m_100(folded: Any) -> tuple[Any, dict[str, Any]]:
    """Return the configuration and the state dict of M2M100ForConditionalGeneration.

    Raises: CannotFold if the class computes positions differently.
    """
    from torch.nn.functional import pad

    from .folding import INSTEAD, CannotFold

    config = library().M2M100Config(
        vocab_size=len(folded.decoder.embedding),
        **MORE["m2m_100"],
        **settings(folded),
    )
    before, most = SPECIAL[PAD] + 1, config.max_position_embeddings
    made = import_module("transformers.models.m2m_100.modeling_m2m_100").M2M100SinusoidalPositionalEmbedding
    table = made.get_embedding(most + before, config.d_model, SPECIAL[PAD])[before:]
    for stack in (folded.encoder, folded.decoder):
        if not (table[: len(stack.positions)] - stack.positions).abs().max() < 1e-4:
            raise CannotFold(f"positions other than sinusoids: {CLASSES['m2m_100']} only supports sinusoids; {INSTEAD}")
    weights = weights_of(folded)
    for name, stack in (("encoder", folded.encoder), ("decoder", folded.decoder)):
        weights |= norm(f"model.{name}.layer_norm", stack.final_norm)
    name = "model.encoder.embed_tokens.weight"
    weights[name] = pad(weights[name], (0, 0, 0, config.vocab_size - len(weights[name])))
    weights["model.shared.weight"] = weights[name]  # only used if it is tied to the others
    weights["lm_head.weight"] = folded.projection.weight
    return config, weights


def weights_of(folded: Any) -> dict[str, Any]:
    """Return the weights that have the same names in both classes."""
    import torch

    weights: dict[str, Any] = {}
    for name, stack in (("encoder", folded.encoder), ("decoder", folded.decoder)):
        weights[f"model.{name}.embed_tokens.weight"] = stack.embedding
        for number, sublayers in enumerate(stack.layers):
            for sublayer in sublayers:
                layer = f"model.{name}.layers.{number}"
                is_ffn = sublayer.kind == "ffn"
                weights |= norm(f"{layer}.{'final' if is_ffn else sublayer.kind}_layer_norm", sublayer.norms[0])
                for part, linear in sublayer.linears.items():
                    place = f"{layer}.{part}" if is_ffn else f"{layer}.{sublayer.kind}.{part}"
                    bias = torch.zeros(len(linear.weight)) if linear.bias is None else linear.bias
                    weights |= {f"{place}.weight": linear.weight, f"{place}.bias": bias}
    return weights


def norm(name: str, made: Any) -> dict[str, Any]:
    return {f"{name}.weight": made.gain, f"{name}.bias": made.bias}


def complete(folder: Path, record: Record) -> None:
    """Write the files that depend on the run: generation_config.json and the tokenizer files.

    With sentencepiece, the tokenizer is MarianTokenizer: it runs sentencepiece with our model and looks each subword
    up in vocab.json. For other subwords it is PreTrainedTokenizerFast, which expects text that is already segmented.
    """
    library().GenerationConfig(
        num_beams=record.search.beam,
        length_penalty=record.search.length_penalty,
        early_stopping=True,
        max_length=record.longest[1],
        min_new_tokens=1,
        suppress_tokens=[SPECIAL[PAD]],
        **special_tokens(),
    ).save_pretrained(folder)
    if record.text.post_process == "sentencepiece" and record.text.model is not None:
        write_marian(folder, record)
    else:
        write_word_level(folder, folder / VOCABULARY, record.longest[0], record.text.post_process)
        if (folder / TARGET_VOCABULARY).is_file():
            target = folder / "target"
            target.mkdir()
            shutil.copyfile(folder / CONFIG, target / CONFIG)  # AutoTokenizer reads it
            write_word_level(target, folder / TARGET_VOCABULARY, record.longest[1], record.text.post_process)


def special_tokens() -> dict[str, int]:
    """Return the generation settings for the special tokens."""
    return {
        "bos_token_id": SPECIAL[BOS],
        "pad_token_id": SPECIAL[PAD],
        "eos_token_id": SPECIAL[EOS],
        "decoder_start_token_id": SPECIAL[EOS],
    }


def write_marian(folder: Path, record: Record) -> None:
    """Write the files of MarianTokenizer."""
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(folder / str(record.text.model), folder / name)
    has_two = (folder / TARGET_VOCABULARY).is_file()
    library().MarianTokenizer(
        source_spm=str(folder / "source.spm"),
        target_spm=str(folder / "target.spm"),
        vocab=str(folder / VOCABULARY),
        target_vocab_file=str(folder / TARGET_VOCABULARY) if has_two else None,
        separate_vocabs=has_two,
        source_lang=record.text.source,
        target_lang=record.text.target,
        model_max_length=record.longest[0],
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def write_word_level(folder: Path, words: Path, longest: int, post_process: str | None) -> None:
    """Write the files of a tokenizer that splits at spaces and, when decoding, joins the subwords of subword-nmt."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel(records.read(words, dict[str, int], WRITER), unk_token=UNK))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, SPECIAL[EOS])])
    if post_process == "subword_nmt":
        spaces = decoders.WordPiece(prefix="\0", cleanup=False)  # the only decoder that puts spaces between tokens
        made.decoder = decoders.Sequence([spaces, decoders.Fuse(), decoders.Replace(Regex("@@( |$)"), "")])
    library().PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=BOS,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=longest,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)


README = """
The model also works with transformers alone, whose own classes can load it (`pip install transformers torch{package}`):

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained("DIR"), AutoTokenizer.from_pretrained("DIR")
found = model.generate(**tokenizer(["A sentence."], padding=True, return_tensors="pt"))
print(tokenizer.batch_decode(found, skip_special_tokens=True))
```

{text} A source has at most {source:,} tokens and a translation at most {target:,}, including `</s>`.
"""
PLAIN = "The tokenizer expects raw text."
OTHER = "The tokenizer expects text in the form {form} of the data folder; fairseq_resid converts raw text to it."
SEGMENTED = "The tokenizer expects and returns text that is already segmented into subwords separated by spaces."
TARGETS = ' Decode with `AutoTokenizer.from_pretrained("DIR", subfolder="target")`: the target has its own dictionary.'


def readme(folder: Path, record: Record) -> str:
    """Return the section of an export's README about transformers."""
    if not (folder / "source.spm").is_file():
        text = SEGMENTED + (TARGETS if (folder / "target").is_dir() else "")
    elif record.text.form == "plain":
        text = PLAIN
    else:
        text = OTHER.format(form=record.text.form)
    package = " sentencepiece" if (folder / "source.spm").is_file() else ""
    return README.format(package=package, text=text, source=record.longest[0], target=record.longest[1])


class Rules:
    """A logits processor for transformers that allows only the tokens that fairseq allows at each step of a search.

    Shapes: ids (batch · beams, step + 1), starting with </s>; scores (batch · beams, V): log p, or logits without beams
    """

    def __init__(self, most: int, prefixes: Sequence[Sequence[int]], beams: int) -> None:
        self.most, self.prefixes, self.beams = most, prefixes, beams

    def __call__(self, ids: Any, scores: Any) -> Any:
        import torch

        step = ids.size(1) - 1
        if step >= self.most:
            only = [SPECIAL[EOS]] * len(scores)
        else:
            scores[:, SPECIAL[PAD]] = -math.inf
            if step == 0:
                scores[:, SPECIAL[EOS]] = -math.inf
            starts = [self.prefixes[row // self.beams] for row in range(len(scores))]
            only = [prefix[step] if step < len(prefix) else -1 for prefix in starts]
        if max(only) < 0:
            return scores
        forced = torch.tensor(only, device=scores.device)[:, None]
        is_free = forced < 0
        kept = scores.gather(1, forced.clamp(min=0))
        allowed = torch.full_like(scores, FORBIDDEN)
        allowed[:, SPECIAL[EOS]] = -math.inf
        return torch.where(is_free, scores, allowed.scatter(1, forced.clamp(min=0), kept))


class Model:
    """A model loaded by transformers on the CPU; see engine.Engine."""

    def __init__(self, folder: Path, record: Record, threads: int = 0) -> None:
        import torch

        self.source = self.target = records.read(folder / VOCABULARY, dict[str, int], WRITER)
        if (folder / TARGET_VOCABULARY).is_file():
            self.target = records.read(folder / TARGET_VOCABULARY, dict[str, int], WRITER)
        self.words = {index: word for word, index in self.target.items()}
        self.longest = record.longest
        if threads:
            torch.set_num_threads(threads)
        with calling("transformers", folder, "cannot load it"), quiet():
            self.model, found = library().AutoModelForSeq2SeqLM.from_pretrained(
                folder,
                dtype="auto",
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        # The library initialises these weights at random.
        wrong = {*found["missing_keys"], *found["unexpected_keys"], *(name for name, *_ in found["mismatched_keys"])}
        if wrong:
            raise ValueError(f"{folder / WEIGHTS}: {min(wrong)}: missing, or does not match {CONFIG}")
        self.model.generation_config = library().GenerationConfig()  # it supplies the settings that a search omits

    def translate(
        self, sources: Sequence[Sequence[str]], search: Search, prefixes: Sequence[Sequence[str]] | None = None
    ) -> list[list[Hypothesis]]:
        """Return the best translations of each source, with fairseq's scores.

        Raises: ValueError naming the source that is too long for the model.
        """
        check_lengths(sources, self.longest[0], "source")
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for rows in batches(sources, search.batch_size):
            most = min(search.longest(max(len(sources[row]) for row in rows)), self.longest[1] - 1)
            begun = [[] if prefixes is None else self.ids(prefixes[row], self.target) for row in rows]
            chosen = [sources[row] for row in rows]
            for row, hypotheses in zip(rows, self.decode(chosen, begun, search, most), strict=True):
                found[row] = hypotheses
        return found

    def decode(
        self, sources: Sequence[Sequence[str]], prefixes: Sequence[Sequence[int]], search: Search, most: int
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses for a batch of sources, best first. most: maximum number of subwords."""
        transformers = library()
        settings = transformers.GenerationConfig(
            num_beams=search.beam,
            num_return_sequences=search.nbest,
            length_penalty=search.length_penalty,
            early_stopping=search.beam > 1,
            max_length=most + 2,  # including </s> at both ends
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=search.beam > 1,
            **special_tokens(),
        )
        made = self.model.generate(
            **self.inputs(sources),
            generation_config=settings,
            logits_processor=transformers.LogitsProcessorList([Rules(most, prefixes, search.beam)]),
        )
        texts = [self.text(row) for row in made.sequences.tolist()]
        if search.beam > 1:
            scores = made.sequences_scores.tolist()
        else:
            log_ps = self.score(sources, texts)
            scores = [sum(log_p) / len(log_p) ** search.length_penalty for log_p in log_ps]
        all_found = [Hypothesis(tuple(text), score) for text, score in zip(texts, scores, strict=True)]
        return [all_found[start : start + search.nbest] for start in range(0, len(all_found), search.nbest)]

    def score(self, sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return log p of every target token and of </s>.

        Raises: ValueError naming the sentence that is too long for the model.
        """
        import torch

        check_lengths(sources, self.longest[0], "source")
        check_lengths(targets, self.longest[1], "target")
        found: list[list[float]] = [[] for _ in sources]
        for rows in batches(sources, Search.batch_size):
            ids = [[*self.ids(targets[row], self.target), SPECIAL[EOS]] for row in rows]
            wanted = padded(ids)
            start = torch.full((len(rows), 1), SPECIAL[EOS])
            with torch.inference_mode():
                logits = self.model(
                    **self.inputs([sources[row] for row in rows]),
                    decoder_input_ids=torch.cat([start, padded([row[:-1] for row in ids])], dim=1),
                    use_cache=False,
                ).logits.float()
                log_p = logits.gather(2, wanted[:, :, None])[:, :, 0] - logits.logsumexp(2)
            for row, values, words in zip(rows, log_p.tolist(), ids, strict=True):
                found[row] = values[: len(words)]
        return found

    def inputs(self, sources: Sequence[Sequence[str]]) -> dict[str, Any]:
        ids = padded([[*self.ids(source, self.source), SPECIAL[EOS]] for source in sources])
        return {"input_ids": ids, "attention_mask": (ids != SPECIAL[PAD]).long()}

    def ids(self, words: Sequence[str], vocabulary: Mapping[str, int]) -> list[int]:
        return [vocabulary.get(word, SPECIAL[UNK]) for word in words]

    def text(self, ids: Sequence[int]) -> list[str]:
        """Return the subwords between the initial and the final </s>."""
        end = ids.index(SPECIAL[EOS], 1)
        return [self.words[index] for index in ids[1:end]]


def padded(rows: Sequence[Sequence[int]]) -> Any:
    import torch

    width = max(map(len, rows))
    return torch.tensor([[*row, *[SPECIAL[PAD]] * (width - len(row))] for row in rows], dtype=torch.long)
