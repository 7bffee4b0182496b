"""Text corpora: from raw text to a binarised data folder."""
