"""Tests of what the plugin changes in fairseq."""
