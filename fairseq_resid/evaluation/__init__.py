"""Evaluation of a trained run: averaging checkpoints, decoding, BLEU."""
