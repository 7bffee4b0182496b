"""Tests of averaging, decoding and scores."""
