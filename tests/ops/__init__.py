"""Tests of the formulas as functions on tensors."""
