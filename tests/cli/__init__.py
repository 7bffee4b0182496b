"""Tests of frame and tools of all commands."""
