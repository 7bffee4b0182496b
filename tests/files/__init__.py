"""Tests of run and data folders."""
