"""Text corpora: from raw text, or the built-in phrasebook grammar, to a binarised data folder."""
