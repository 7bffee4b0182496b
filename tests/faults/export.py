"""Faults that plant_faults.py plants in fairseq_resid/export."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "export: a shortcut weight does not change the input weights of the branch",
        "fairseq_resid/export/folding.py",
        "scaled(linear.weight, 1 / shortcut)",
        "scaled(linear.weight, shortcut * 0 + 1)",
        "export/test_folding.py",
    ),
    Fault(
        "export: the position table is not scaled for the first site",
        "fairseq_resid/export/folding.py",
        "stack.embedding, stack.positions = scaled(stack.embedding, by), scaled(stack.positions, by)",
        "stack.embedding = scaled(stack.embedding, by)",
        "export/test_folding.py",
    ),
    Fault(
        "export: a branch weight does not scale the bias",
        "fairseq_resid/export/folding.py",
        "None if output.bias is None else scaled(output.bias, branch)",
        "output.bias",
        "export/test_folding.py",
    ),
    Fault(
        "export: the structure's default decides whether there is a final norm",
        "fairseq_resid/export/ctranslate2.py",
        "no_final_norm=stack.final_norm is None,",
        'no_final_norm=stack.graph == "post_norm",',
        "export/test_ctranslate2.py",
    ),
    Fault(
        "export: </s> is not counted in the length of a translation",
        "fairseq_resid/export/ctranslate2.py",
        "return_end_token=True,",
        "return_end_token=False,",
        "export/test_ctranslate2.py",
    ),
    Fault(
        "export: the engine may generate padding",
        "fairseq_resid/export/ctranslate2.py",
        "[each for each in hypotheses if PAD not in each.tokens]",
        "list(hypotheses)",
        "export/test_ctranslate2.py",
    ),
    Fault(
        "export: a vocabulary of the wrong size is loaded",
        "fairseq_resid/export/ctranslate2.py",
        "len(words) != embedded or ",
        "",
        "export/test_ctranslate2.py",
    ),
    Fault(
        "export: the proof accepts any difference of log p",
        "fairseq_resid/export/proof.py",
        "if not self.largest <= TOLERANCE:",
        "if self.largest == TOLERANCE:",
        "export/test_proof.py",
    ),
    Fault(
        "export: the folder remains after a failed proof",
        "fairseq_resid/export/export.py",
        "    with replacing(out) as partial:\n        partial.mkdir()",
        "    for partial in [out]:\n        partial.mkdir()",
        "export/test_export.py",
    ),
    Fault(
        "export: a subword model outside the folder is loaded",
        "fairseq_resid/export/engine.py",
        "Path(known.text.model).name != known.text.model",
        "not known.text.model",
        "export/test_ctranslate2.py",
    ),
    Fault(
        "export: positions of an ONNX graph count padding",
        "fairseq_resid/export/onnx_graph.py",
        "torch.cumsum(is_token, dim=1)",
        "torch.cumsum(torch.ones_like(is_token), dim=1)",
        "export/test_onnx_search.py",
    ),
    Fault(
        "export: the encoder of an ONNX graph attends to padding",
        "fairseq_resid/export/onnx_graph.py",
        "attend(q, k, v, mask)",
        "attend(q, k, v, None)",
        "export/test_onnx_search.py",
    ),
    Fault(
        "export: keys and values become one input of an ONNX graph",
        "fairseq_resid/export/onnx.py",
        "keys.clone()",
        "keys",
        "export/test_onnx_search.py",
    ),
    Fault(
        "export: ONNX Runtime's search does not count </s> in the length",
        "fairseq_resid/export/onnx_runner.py",
        "(step + 1) ** search.length_penalty",
        "max(step, 1) ** search.length_penalty",
        "export/test_onnx_search.py",
    ),
    Fault(
        "export: ONNX Runtime's search uses the caches of other hypotheses",
        "fairseq_resid/export/onnx_runner.py",
        "keys[:, rows], values[:, rows]",
        "keys[:, np.sort(rows)], values[:, np.sort(rows)]",
        "export/test_onnx_search.py",
    ),
    Fault(
        "export: ONNX Runtime's search ends a filler hypothesis",
        "fairseq_resid/export/onnx_runner.py",
        "is_end[:, :beam] &= ~ignored",
        "is_end[:, :beam] &= True",
        "export/test_onnx_search.py",
    ),
    Fault(
        "export: ONNX Runtime's search may generate padding",
        "fairseq_resid/export/onnx_runner.py",
        "log_p[:, target.padding] = -math.inf",
        "log_p[:, target.padding] += 0",
        "export/test_onnx_search.py",
    ),
]
