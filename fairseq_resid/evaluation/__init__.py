"""Evaluation of trained runs: averaged checkpoints, translations, scores, comparisons, tables and cards."""
