"""Planted faults, and the tests that find them."""
