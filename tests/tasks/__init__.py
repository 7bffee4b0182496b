"""Tests of kinds of task."""
