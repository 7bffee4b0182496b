"""Tests of the patches to fairseq."""
