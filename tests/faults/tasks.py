"""Faults that plant_faults.py plants in fairseq_resid/tasks."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "images: every epoch has the same batches",
        "fairseq_resid/tasks/images.py",
        "np.random.Philox(key=[self.seed, self.epoch], counter=ORDER)",
        "np.random.Philox(key=[self.seed, 1], counter=ORDER)",
        "images/test_image_batches.py",
    ),
    Fault(
        "images: validation is cropped at random",
        "fairseq_resid/tasks/images.py",
        'self.open(split, split == getattr(self.args, "train_subset", "train"))',
        "self.open(split, True)",
        "images/test_image_batches.py",
    ),
    Fault(
        "decoding: a missing hypothesis is accepted",
        "fairseq_resid/tasks/text/decoding.py",
        "    if missing:",
        "    if False:",
        "evaluation/test_decoding.py",
    ),
    Fault(
        "scoring: BLEU with the wrong tokenisation",
        "fairseq_resid/data/text/bleu.py",
        "return BLEU(tokenize=tokenize, lowercase=lowercase",
        'return BLEU(tokenize="intl", lowercase=lowercase',
        "evaluation/test_evaluate.py",
    ),
    Fault(
        "comparison: scores of different test sets are compared",
        "fairseq_resid/tasks/text/significance.py",
        "        if mine[what] != theirs[what]:",
        "        if False:",
        "evaluation/test_compare.py",
    ),
    Fault(
        "images: a model is evaluated in training mode",
        "fairseq_resid/tasks/loading.py",
        "data, model.to(device).eval(), task",
        "data, model.to(device).train(), task",
        "images/test_image_scores.py",
    ),
    Fault(
        "images: McNemar's test counts images that both models get wrong",
        "fairseq_resid/tasks/answers.py",
        "better = sum(other.is_wrong and not one.is_wrong",
        "better = sum(other.is_wrong",
        "images/test_image_scores.py",
    ),
    Fault(
        "study: the error is a fraction instead of a percentage",
        "fairseq_resid/tasks/classifying.py",
        "    return 100 * mean_of_sums(summed)\n",
        "    return mean_of_sums(summed)\n",
        "images/test_image_studies.py",
    ),
    Fault(
        "tasks: an image model's checkpoint is treated as a translation model's",
        "fairseq_resid/tasks/kinds.py",
        "task.folder.task == name",
        "task.folder.task != name",
        "images/test_image_scores.py",
    ),
    Fault(
        "tasks: raw source text is not restored to plain words",
        "fairseq_resid/tasks/text/source.py",
        "plain_words(self.segmenter.encode([self.form.to_model(line)])[0])",
        "self.segmenter.encode([line])[0]",
        "evaluation/test_translate.py",
    ),
    Fault(
        "captions: every caption is paired with the first image",
        "fairseq_resid/tasks/captions.py",
        "np.repeat(np.arange(len(encoded)), counts)",
        "np.repeat(np.zeros(len(encoded), np.int64), counts)",
        "captions/test_caption_training.py",
    ),
    Fault(
        "captions: CIDEr without the length penalty",
        "fairseq_resid/tasks/text/cider.py",
        "penalty = math.exp(-(apart**2) / (2 * SIGMA**2))",
        "penalty = 1.0",
        "captions/test_caption_scores.py",
    ),
    Fault(
        "captions: the p-value of the bootstrap is not centred",
        "fairseq_resid/tasks/text/caption_scores.py",
        "np.abs(resampled - observed) >= abs(observed)",
        "np.abs(resampled) >= abs(observed)",
        "captions/test_caption_scores.py",
    ),
    Fault(
        "captions: the baseline of a sampled caption contains its own reward",
        "fairseq_resid/tasks/self_critical.py",
        "(samples * by_image - by_image.sum(1, keepdim=True)) / (samples - 1)",
        "by_image - by_image.mean(1, keepdim=True)",
        "captions/test_self_critical.py",
    ),
]
