"""The embedded corpus: an English to Vietnamese phrasebook, made from a grammar and a lexicon of its own."""
