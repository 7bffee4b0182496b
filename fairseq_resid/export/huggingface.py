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
from .engine import BOS, EOS, PAD, UNK, WRITER, Engine, Hypothesis, Record, Search, Words, calling, quiet, symbols

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
CLASSES = {"post_norm": "FSMTForConditionalGeneration", "pre_norm": "M2M100ForConditionalGeneration"}
WEIGHTS, CONFIG = "model.safetensors", "config.json"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
SPECIAL = {BOS: 0, PAD: 1, EOS: 2, UNK: 3}
TOKENS = {
    "bos_token_id": SPECIAL[BOS],
    "pad_token_id": SPECIAL[PAD],
    "eos_token_id": SPECIAL[EOS],
    "decoder_start_token_id": SPECIAL[EOS],
}
FORBIDDEN = -1e9  # except for </s>, which gets -inf, because with any finite log p it could end a hypothesis
README = """
The model also works with transformers alone, whose own classes can load it (`pip install transformers torch{package}`):

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained("DIR"), AutoTokenizer.from_pretrained("DIR")
found = model.generate(**tokenizer(["A sentence."], padding=True, return_tensors="pt"))
print(tokenizer.batch_decode(found, skip_special_tokens=True))
```

The tokenizer expects {text}. A source has at most {source:,} tokens and a translation at most {target:,}, including
`</s>`.
"""
SEGMENTED = "text that is already segmented into subwords separated by spaces, and returns such text"
TARGETS = '. Decode with `AutoTokenizer.from_pretrained("DIR", subfolder="target")`: the target has its own dictionary'


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


def write(model: Any, source_dictionary: Any, target_dictionary: Any, folder: Path, record: Record) -> str:
    """Write a fairseq Transformer to a folder with its tokenizer; return the section of the README about them.

    Raises: ValueError naming the structure or setting that no class can express.
    """
    import torch

    from .folding import fold

    transformers, (longest_source, longest_target) = library(), record.longest
    source, target = (
        {symbol: index for index, symbol in enumerate(symbols(each))} for each in (source_dictionary, target_dictionary)
    )
    has_two = source != target
    folded = fold(model)
    check(folded, record)
    config, weights = converted(folded)
    made = getattr(transformers, CLASSES[folded.encoder.graph])(config)
    made.load_state_dict(weights, strict=False)  # tied weights are missing
    made.tie_weights()
    with calling("safetensors", folder / WEIGHTS, "cannot write it"):
        made.to(getattr(torch, record.quantization or "float32")).save_pretrained(folder, max_shard_size="100TB")
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors makes it readable only by its owner
    transformers.GenerationConfig(
        num_beams=record.search.beam,
        length_penalty=record.search.length_penalty,
        early_stopping=True,
        max_length=longest_target,
        min_new_tokens=1,
        suppress_tokens=[SPECIAL[PAD]],
        **TOKENS,
    ).save_pretrained(folder)
    records.write(folder / VOCABULARY, source)
    if has_two:
        records.write(folder / TARGET_VOCABULARY, target)
    if record.text.post_process == "sentencepiece" and record.text.model is not None:
        write_marian(folder, record, has_two)
        package, text = " sentencepiece", "raw text"
        if record.text.form != "plain":
            text = f"text in the form {record.text.form} of the data folder; fairseq_resid converts raw text to it"
    else:
        package, text = "", SEGMENTED + (TARGETS if has_two else "")
        write_word_level(folder, source, longest_source, record.text.post_process)
        if has_two:
            (folder / "target").mkdir()
            shutil.copyfile(folder / CONFIG, folder / "target" / CONFIG)  # AutoTokenizer reads it
            write_word_level(folder / "target", target, longest_target, record.text.post_process)
    return README.format(package=package, text=text, source=longest_source, target=longest_target)


def check(folded: Any, record: Record) -> None:
    """Raise CannotFold naming the structure or setting that neither class supports."""
    from .folding import INSTEAD, CannotFold

    encoder, decoder = stacks = folded.encoder, folded.decoder
    is_post_norm = encoder.graph == "post_norm"
    if encoder.graph not in CLASSES:
        named = record.structure.get("residual")
        raise CannotFold(f"--residual {named}: no class in transformers has two norms around a sublayer; {INSTEAD}")
    wrong = {
        "--layernorm-embedding": any(stack.embedding_norm is not None for stack in stacks),
        "--final-norm layer": is_post_norm and any(stack.final_norm is not None for stack in stacks),
        "--final-norm none": not is_post_norm and any(stack.final_norm is None for stack in stacks),
        "stacks of different graphs": encoder.graph != decoder.graph,
        "stacks of different widths": encoder.embedding.size(1) != decoder.embedding.size(1),
        f"--activation-fn {encoder.activation}": encoder.activation not in ACTIVATIONS,
        "a source dictionary larger than the target dictionary": not is_post_norm
        and len(encoder.embedding) > len(decoder.embedding),
        "positions other than sinusoids": not is_post_norm and not all(map(are_sinusoids, stacks)),
    }
    for setting, is_set in wrong.items():
        if is_set:
            raise CannotFold(f"{setting}: {CLASSES[encoder.graph]} has no such setting; {INSTEAD}")


def are_sinusoids(stack: Any) -> bool:
    """Return whether a stack has the positions that M2M100 computes."""
    library()
    made = import_module("transformers.models.m2m_100.modeling_m2m_100").M2M100SinusoidalPositionalEmbedding
    before, (count, width) = SPECIAL[PAD] + 1, stack.positions.shape
    table = made.get_embedding(count + before, width, SPECIAL[PAD])[before:]
    return bool((table - stack.positions).abs().max() < 1e-4)


def converted(folded: Any) -> tuple[Any, dict[str, Any]]:
    """Return the configuration and the state dict of the class for a model."""
    from torch.nn.functional import pad

    stacks = {"encoder": folded.encoder, "decoder": folded.decoder}
    encoder, decoder, rows = folded.encoder, folded.decoder, folded.projection
    is_post_norm = encoder.graph == "post_norm"
    most = max(len(stack.positions) for stack in stacks.values())
    settings: dict[str, Any] = {
        "architectures": [CLASSES[encoder.graph]],
        "activation_function": ACTIVATIONS[encoder.activation],
        "d_model": encoder.embedding.size(1),
        "max_position_embeddings": most,
        "scale_embedding": encoder.scale != 1.0,
        "tie_word_embeddings": all(
            stack.embedding.shape == rows.shape and bool((stack.embedding == rows).all()) for stack in stacks.values()
        ),
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        **TOKENS,
    }
    weights: dict[str, Any] = {}

    def add(name: str, affine: Any) -> None:
        weights.update({f"{name}.weight": affine.weight, f"{name}.bias": affine.bias})

    for name, stack in stacks.items():
        settings |= {
            f"{name}_layers": len(stack.layers),
            f"{name}_attention_heads": stack.heads,
            f"{name}_ffn_dim": next((len(layer[-1].linears["fc1"].weight) for layer in stack.layers), 1),
        }
        weights[f"model.{name}.embed_tokens.weight"] = stack.embedding
        for number, sublayers in enumerate(stack.layers):
            for sublayer in sublayers:
                layer, is_ffn = f"model.{name}.layers.{number}", sublayer.kind == "ffn"
                add(f"{layer}.{'final' if is_ffn else sublayer.kind}_layer_norm", sublayer.norms[0])
                for part, linear in sublayer.linears.items():
                    add(f"{layer}.{part}" if is_ffn else f"{layer}.{sublayer.kind}.{part}", linear)
        if is_post_norm:
            table = pad(stack.positions, (0, 0, SPECIAL[PAD] + 1, most - len(stack.positions)))
            weights[f"model.{name}.embed_positions.weight"] = table
        else:
            add(f"model.{name}.layer_norm", stack.final_norm)
    if is_post_norm:
        weights["model.decoder.output_projection.weight"] = rows
        sizes = {"src_vocab_size": len(encoder.embedding), "tgt_vocab_size": len(decoder.embedding)}
        return library().FSMTConfig(**sizes, forced_eos_token_id=None, **settings), weights
    source = pad(encoder.embedding, (0, 0, 0, len(decoder.embedding) - len(encoder.embedding)))
    # model.shared is only used if it is tied to the others.
    weights |= {"model.encoder.embed_tokens.weight": source, "model.shared.weight": source, "lm_head.weight": rows}
    no_drop = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    return library().M2M100Config(vocab_size=len(decoder.embedding), **no_drop, **settings), weights


def write_marian(folder: Path, record: Record, has_two: bool) -> None:
    """Write the files of MarianTokenizer, which runs sentencepiece with our model and looks subwords up in vocab.json.

    has_two: whether the target has a vocabulary of its own
    """
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(folder / str(record.text.model), folder / name)
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


def write_word_level(folder: Path, vocabulary: dict[str, int], longest: int, post_process: str | None) -> None:
    """Write the files of a tokenizer that splits at spaces and, when decoding, joins the subwords of subword-nmt."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
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
        kept = scores.gather(1, forced.clamp(min=0))
        allowed = torch.full_like(scores, FORBIDDEN)
        allowed[:, SPECIAL[EOS]] = -math.inf
        return torch.where(forced < 0, scores, allowed.scatter(1, forced.clamp(min=0), kept))


class Model(Engine):
    """A model loaded by transformers on the CPU. Its scores equal fairseq's."""

    def __init__(self, folder: Path, record: Record, threads: int = 0) -> None:
        import torch

        self.source = records.read(folder / VOCABULARY, dict[str, int], WRITER)
        self.target = records.read_if_there(folder / TARGET_VOCABULARY, dict[str, int], WRITER) or self.source
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

    def decode(
        self, sources: Sequence[Words], prefixes: Sequence[Words] | None, search: Search, most: int
    ) -> list[list[Hypothesis]]:
        transformers = library()
        begun = [ids_of(prefix, self.target) for prefix in prefixes or [()] * len(sources)]
        settings = transformers.GenerationConfig(
            num_beams=search.beam,
            num_return_sequences=search.nbest,
            length_penalty=search.length_penalty,
            early_stopping=search.beam > 1,
            max_length=most + 2,  # including </s> at both ends
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=search.beam > 1,
            **TOKENS,
        )
        made = self.model.generate(
            **self.inputs(sources),
            generation_config=settings,
            logits_processor=transformers.LogitsProcessorList([Rules(most, begun, search.beam)]),
        )
        # The subwords between the initial and the final </s>.
        texts = [
            [self.words[index] for index in ids[1 : ids.index(SPECIAL[EOS], 1)]] for ids in made.sequences.tolist()
        ]
        if search.beam > 1:
            scores = made.sequences_scores.tolist()
        else:
            scores = [sum(log_p) / len(log_p) ** search.length_penalty for log_p in self.score(sources, texts)]
        found = [Hypothesis(tuple(text), score) for text, score in zip(texts, scores, strict=True)]
        return [found[start : start + search.nbest] for start in range(0, len(found), search.nbest)]

    def log_p(self, sources: Sequence[Words], targets: Sequence[Words]) -> list[list[float]]:
        import torch

        ids = [[*ids_of(target, self.target), SPECIAL[EOS]] for target in targets]
        previous = padded([[SPECIAL[EOS], *row[:-1]] for row in ids])
        with torch.inference_mode():
            logits = self.model(**self.inputs(sources), decoder_input_ids=previous, use_cache=False).logits.float()
            log_p = logits.gather(2, padded(ids)[:, :, None])[:, :, 0] - logits.logsumexp(2)
        return [values[: len(row)] for values, row in zip(log_p.tolist(), ids, strict=True)]

    def inputs(self, sources: Sequence[Words]) -> dict[str, Any]:
        ids = padded([[*ids_of(source, self.source), SPECIAL[EOS]] for source in sources])
        return {"input_ids": ids, "attention_mask": (ids != SPECIAL[PAD]).long()}


def ids_of(words: Words, vocabulary: Mapping[str, int]) -> list[int]:
    return [vocabulary.get(word, SPECIAL[UNK]) for word in words]


def padded(rows: Sequence[Sequence[int]]) -> Any:
    from torch import tensor
    from torch.nn.utils.rnn import pad_sequence

    return pad_sequence([tensor(row) for row in rows], batch_first=True, padding_value=SPECIAL[PAD])
