"""Tests of whole commands, pages and the environment."""
