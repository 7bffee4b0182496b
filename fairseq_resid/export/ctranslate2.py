"""CTranslate2: write a model in its stock Transformer format, and translate with it.

The engine's search differs from fairseq's in three ways: it counts </s> in the length only if </s> is returned, a batch
has a single maximum length, and <pad> can be generated. `Model` compensates for all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .engine import BOS, EOS, PAD, UNK, Hypothesis, Record, Search, batches, calling, check_lengths, symbols

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


def write(
    model: Any, source_dictionary: Any, target_dictionary: Any, folder: Path, quantization: str | None = None
) -> None:
    """Write a fairseq Transformer to a folder in the engine's format.

    Raises: ValueError naming the structure or setting that the engine cannot express.
    """
    specification = specify(model)
    for register, dictionary in (
        (specification.register_source_vocabulary, source_dictionary),
        (specification.register_target_vocabulary, target_dictionary),
    ):
        register(symbols(dictionary))
    for name, value in SETTINGS.items():
        setattr(specification.config, name, value)
    specification.validate()
    specification.optimize(quantization=quantization)
    specification.save(str(folder))


def specify(model: Any) -> Any:
    """Return the engine's specification with the folded weights of a model, without vocabularies.

    Raises: ValueError naming the structure or setting that the engine cannot express.
    """
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
    fill_linear(decoder.projection, [folded.projection])
    return transformer_spec.TransformerSpec(encoder, decoder)


def fill_stack(spec: Any, stack: Any) -> None:
    """Fill in the weights of an encoder or decoder."""
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
    """Fill in the weights of a sublayer and its norms."""
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
    spec.gamma, spec.beta = norm.gain.numpy(), norm.bias.numpy()


def fill_linear(spec: Any, linears: Sequence[Any]) -> None:
    """Fill in the weights of several linear maps that share an input, as a single map."""
    spec.weight = np.concatenate([linear.weight.numpy() for linear in linears])
    if any(linear.bias is not None for linear in linears):
        spec.bias = np.concatenate([bias_of(linear) for linear in linears])


def bias_of(linear: Any) -> NDArray[np.float32]:
    """Return the bias of a linear map, or zeros if it has none."""
    found: NDArray[np.float32] = np.zeros(len(linear.weight), np.float32)
    return found if linear.bias is None else linear.bias.numpy()


class Model:
    """A model loaded by CTranslate2 on the CPU; see engine.Engine."""

    def __init__(self, folder: Path, record: Record, threads: int = 0) -> None:
        import ctranslate2

        with calling("CTranslate2", folder, "cannot load it"):
            self.translator = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=threads)
        self.longest = record.longest

    def translate(
        self, sources: Sequence[Sequence[str]], search: Search, prefixes: Sequence[Sequence[str]] | None = None
    ) -> list[list[Hypothesis]]:
        """Return the best translations of each source.

        A hypothesis that reaches the maximum length gets a final </s>, as in fairseq. With a prefix, every hypothesis
        is scored again, because the engine's score omits the prefix. Other scores differ from fairseq's,
        because only fairseq includes </s> in the softmax at the first position, although neither allows it there.
        Raises: ValueError naming the source that is too long for the model.
        """
        check_lengths(sources, self.longest[0], "source")
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for rows in batches(sources, search.batch_size):
            most = min(search.longest(max(len(sources[row]) for row in rows)), self.longest[1] - 1)
            for suppressed in (None, [[PAD]]):
                chosen = [sources[row] for row in rows]
                begun = None if prefixes is None else [prefixes[row] for row in rows]
                for row, hypotheses in zip(rows, self.decode(chosen, begun, search, most, suppressed), strict=True):
                    found[row] = [each for each in hypotheses if PAD not in each.tokens][: search.nbest]
                # fairseq never generates <pad>. Suppressing it in every search would change the other probabilities.
                rows = [row for row in rows if len(found[row]) < search.nbest]
                if not rows:
                    break
        return found

    def decode(
        self,
        sources: Sequence[Sequence[str]],
        prefixes: Sequence[Sequence[str]] | None,
        search: Search,
        most: int,
        suppressed: list[list[str]] | None,
    ) -> list[list[Hypothesis]]:
        """Return all hypotheses of a batch of sources, best first. most: maximum number of subwords."""
        results = self.translator.translate_batch(
            [list(source) for source in sources],
            None if prefixes is None else [list(prefix) for prefix in prefixes],
            beam_size=search.beam,
            num_hypotheses=search.beam,
            length_penalty=search.length_penalty,
            max_decoding_length=max(most, 1),
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
        if unscored:
            scores = self.score(
                [sources[row] for row, _ in unscored], [found[row][number].tokens for row, number in unscored]
            )
            for (row, number), log_p in zip(unscored, scores, strict=True):
                score = sum(log_p) / len(log_p) ** search.length_penalty
                found[row][number] = Hypothesis(found[row][number].tokens, score)
        return [sorted(hypotheses, key=lambda each: -each.score) for hypotheses in found]

    def score(self, sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return log p of every target token and of </s>.

        Raises: ValueError naming the sentence that is too long for the model.
        """
        check_lengths(sources, self.longest[0], "source")
        check_lengths(targets, self.longest[1], "target")
        results = self.translator.score_batch(
            [list(source) for source in sources],
            [list(target) for target in targets],
            max_batch_size=32,
            max_input_length=0,
        )
        return [list(result.log_probs) for result in results]
