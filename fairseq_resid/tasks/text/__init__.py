"""Text that a model decodes: decoding with fairseq-generate, BLEU and its tests, NLL of the references."""
