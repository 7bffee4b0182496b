"""Tests of the code that all commands share."""
