"""Translation: decoding with fairseq-generate, BLEU with significance tests, NLL of the references."""
