"""Tests of the kinds of tasks."""
