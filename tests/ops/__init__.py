"""Tests of the mathematics as functions."""
