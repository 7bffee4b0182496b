"""Tests of the analysis of trained models."""
