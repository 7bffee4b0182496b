"""Tests of scoring: kinds of tasks, loading of models, scores of translations."""
