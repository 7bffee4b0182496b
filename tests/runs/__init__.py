"""Tests of training, stopping, resuming."""
