"""The built-in corpus: an English to Vietnamese phrasebook generated from its own grammar and lexicon."""
