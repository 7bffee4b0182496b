"""Captions: prepare a data folder from captions and region features, read it, and make mosaics with captions."""
