"""Faults in fairseq_resid/evaluation, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "averaging: the sum is divided by one too few",
        "fairseq_resid/evaluation/averaging.py",
        ".div_(len(paths))",
        ".div_(len(paths) - 1 or 1)",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "averaging: the first checkpoints instead of the last",
        "fairseq_resid/evaluation/averaging.py",
        "return numbered[-last:]",
        "return numbered[:last]",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "averaging: a different dtype is accepted",
        "fairseq_resid/evaluation/averaging.py",
        "            if (shape, dtype, tied) != actual[name]:",
        "            if shape != actual[name][0]:",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "decoding: a missing hypothesis is accepted",
        "fairseq_resid/evaluation/decoding.py",
        "    if missing:",
        "    if False:",
        "evaluation/test_decoding.py",
    ),
    Fault(
        "scoring: BLEU with the wrong tokenisation",
        "fairseq_resid/evaluation/scoring.py",
        "metric = BLEU(tokenize=tokenize, lowercase=lowercase",
        'metric = BLEU(tokenize="intl", lowercase=lowercase',
        "evaluation/test_evaluate.py",
    ),
    Fault(
        "comparison: scores of different test sets are compared",
        "fairseq_resid/evaluation/compare.py",
        "            if mine[what] != theirs[what]:",
        "            if False:",
        "evaluation/test_compare.py",
    ),
    Fault(
        "images: a model is evaluated in training mode",
        "fairseq_resid/evaluation/images.py",
        "    model = (model.cuda() if on_gpu else model).eval()\n",
        "    model = (model.cuda() if on_gpu else model).train()\n",
        "images/test_image_scores.py",
    ),
    Fault(
        "images: McNemar's test counts images that both models get wrong",
        "fairseq_resid/evaluation/images.py",
        "better = sum(other.is_wrong and not one.is_wrong",
        "better = sum(other.is_wrong",
        "images/test_image_scores.py",
    ),
]
