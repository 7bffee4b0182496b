"""Tests of averaging, decoding, scores."""
