"""Captions: prepare a data folder from captions and region features, and read it."""
