"""Corpora: from text on disk, or from the built-in phrasebook grammar, to a binarised data folder."""
