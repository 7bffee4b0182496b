"""Tests of preparation of text."""
