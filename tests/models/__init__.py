"""Tests of translation models in fairseq."""
