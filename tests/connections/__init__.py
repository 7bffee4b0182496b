"""Tests of structures as modules."""
