"""CTranslate2: write a model in its stock Transformer format, and translate with it.

The engine's search differs from fairseq's in three ways: it counts </s> in the length only if </s> is returned, a batch
has a single maximum length, and <pad> can be generated. `Model` compensates for all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .engine import BOS, EOS, PAD, UNK, Engine, Hypothesis, Record, Search, Words, calling, symbols

# Values of --quantization. With "int8", the machine that loads the model chooses the type of all other weights.
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_accurate": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "swish": "SWISH",
}
# The content of config.json.
SETTINGS = {
    "bos_token": BOS,
    "eos_token": EOS,
    "unk_token": UNK,
    "decoder_start_token": EOS,
    "add_source_bos": False,
    "add_source_eos": True,
    "layer_norm_epsilon": 1e-5,
}


def write(model: Any, source_dictionary: Any, target_dictionary: Any, folder: Path, record: Record) -> None:
    """Write a fairseq Transformer to a folder in the engine's format.

    Raises: ValueError naming the structure or setting that the engine cannot express.
    """
    specification = specify(model)
    specification.register_source_vocabulary(symbols(source_dictionary))
    specification.register_target_vocabulary(symbols(target_dictionary))
    for name, value in SETTINGS.items():
        setattr(specification.config, name, value)
    specification.validate()
    specification.optimize(quantization=record.quantization)
    specification.save(str(folder))


def specify(model: Any) -> Any:
    """Return the engine's specification with the folded weights of a model, without vocabularies."""
    from ctranslate2.specs import common_spec, transformer_spec

    from .folding import INSTEAD, CannotFold, fold

    folded = fold(model)
    stacks = {}
    for stack, kind in (
        (folded.encoder, transformer_spec.TransformerEncoderSpec),
        (folded.decoder, transformer_spec.TransformerDecoderSpec),
    ):
        activation = ACTIVATIONS.get(stack.activation)
        if activation is None:
            raise CannotFold(
                f"--activation-fn {stack.activation}: CTranslate2 supports {', '.join(ACTIVATIONS)}; {INSTEAD}"
            )
        is_twice = stack.graph == "pre_and_post_norm"
        external = {"external_pre_post_encoder_layers": True} if is_twice and stack is folded.decoder else {}
        made = stacks[kind] = kind(
            len(stack.layers),
            stack.heads,
            pre_norm=True,  # otherwise the specification has no final norm
            no_final_norm=stack.final_norm is None,
            activation=getattr(common_spec.Activation, activation),
            layernorm_embedding=stack.embedding_norm is not None,
            pre_post_layer_norm=is_twice,
            **external,
        )
        made.pre_norm = stack.graph != "post_norm"
        fill_stack(made, stack)
    encoder, decoder = stacks.values()
    decoder.projection.weight = folded.projection.numpy()
    return transformer_spec.TransformerSpec(encoder, decoder)


def fill_stack(spec: Any, stack: Any) -> None:
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = stack.embedding.numpy()
    spec.scale_embeddings = float(stack.scale)
    spec.position_encodings.encodings = stack.positions.numpy()
    if stack.embedding_norm is not None:
        fill_norm(spec.layernorm_embedding, stack.embedding_norm)
    if stack.final_norm is not None:
        fill_norm(spec.layer_norm, stack.final_norm)
    for layer, sublayers in zip(spec.layer, stack.layers, strict=True):
        for sublayer in sublayers:
            fill_sublayer(layer, sublayer)


def fill_sublayer(layer: Any, sublayer: Any) -> None:
    linears = sublayer.linears
    if sublayer.kind == "ffn":
        part = layer.ffn
        fill_linear(part.linear_0, [linears["fc1"]])
        fill_linear(part.linear_1, [linears["fc2"]])
        around = ("pre_feedforward_layer_norm", "post_feedforward_layer_norm")
    elif sublayer.kind == "self_attn":
        part = layer.self_attention
        fill_linear(part.linear[0], [linears[name] for name in ("q_proj", "k_proj", "v_proj")])
        fill_linear(part.linear[1], [linears["out_proj"]])
        around = ("input_layer_norm", "post_attention_layer_norm")
    else:
        part = layer.attention
        fill_linear(part.linear[0], [linears["q_proj"]])
        fill_linear(part.linear[1], [linears["k_proj"], linears["v_proj"]])
        fill_linear(part.linear[2], [linears["out_proj"]])
        around = ("external_pre_encoder_attention_layer_norm", "external_post_encoder_attention_layer_norm")
    if len(sublayer.norms) == 1:
        fill_norm(part.layer_norm, sublayer.norms[0])
    else:
        for name, norm in zip(around, sublayer.norms, strict=True):
            fill_norm(getattr(layer, name), norm)


def fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = norm.weight.numpy(), norm.bias.numpy()


def fill_linear(spec: Any, linears: Sequence[Any]) -> None:
    """Fill in the weights of several linear maps that share an input, as a single map."""
    spec.weight = np.concatenate([linear.weight.numpy() for linear in linears])
    spec.bias = np.concatenate([linear.bias.numpy() for linear in linears])


class Model(Engine):
    """A model loaded by CTranslate2 on the CPU."""

    def __init__(self, folder: Path, record: Record, threads: int = 0) -> None:
        import ctranslate2

        with calling("CTranslate2", folder, "cannot load it"):
            self.translator = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=threads)
        self.longest = record.longest

    def decode(
        self, sources: Sequence[Words], prefixes: Sequence[Words] | None, search: Search, most: int
    ) -> list[list[Hypothesis]]:
        found = self.search(sources, prefixes, search, most, None)
        # fairseq never generates <pad>. Suppressing it in every search would change the other probabilities.
        rows = [row for row, hypotheses in enumerate(found) if len(hypotheses) < search.nbest]
        if rows:
            begun = None if prefixes is None else [prefixes[row] for row in rows]
            again = self.search([sources[row] for row in rows], begun, search, most, [[PAD]])
            for row, hypotheses in zip(rows, again, strict=True):
                found[row] = hypotheses
        return found

    def search(
        self,
        sources: Sequence[Words],
        prefixes: Sequence[Words] | None,
        search: Search,
        most: int,
        suppressed: list[list[str]] | None,
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses without <pad>, best first.

        A hypothesis that reaches the maximum length gets a final </s>, as in fairseq. With a prefix, every hypothesis
        is scored again, because the engine's score omits the prefix. Other scores differ from fairseq's,
        because only fairseq includes </s> in the softmax at the first position, although neither allows it there.
        """
        results = self.translator.translate_batch(
            list(map(list, sources)),
            None if prefixes is None else list(map(list, prefixes)),
            beam_size=search.beam,
            num_hypotheses=search.beam,
            length_penalty=search.length_penalty,
            max_decoding_length=most,
            max_input_length=0,
            min_decoding_length=1,
            suppress_sequences=suppressed,
            return_end_token=True,
            return_scores=True,
        )
        found: list[list[Hypothesis]] = []
        unscored: list[tuple[int, int]] = []
        for row, result in enumerate(results):
            found.append([])
            for number, (tokens, score) in enumerate(zip(result.hypotheses, result.scores, strict=True)):
                is_complete = bool(tokens) and tokens[-1] == EOS
                found[row].append(Hypothesis(tuple(tokens[:-1] if is_complete else tokens), score))
                if prefixes is not None or not is_complete:
                    unscored.append((row, number))
        log_ps = self.score(
            [sources[row] for row, _ in unscored], [found[row][number].tokens for row, number in unscored]
        )
        for (row, number), log_p in zip(unscored, log_ps, strict=True):
            found[row][number] = replace(found[row][number], score=sum(log_p) / len(log_p) ** search.length_penalty)
        return [
            sorted((each for each in hypotheses if PAD not in each.tokens), key=lambda each: -each.score)
            for hypotheses in found
        ]

    def log_p(self, sources: Sequence[Words], targets: Sequence[Words]) -> list[list[float]]:
        results = self.translator.score_batch(list(map(list, sources)), list(map(list, targets)), max_input_length=0)
        return [list(result.log_probs) for result in results]
