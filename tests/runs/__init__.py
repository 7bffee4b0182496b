"""Tests of training, stopping and resuming."""
