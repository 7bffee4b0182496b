"""Tests of what a model learned."""
