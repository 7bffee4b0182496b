"""Translation and captioning: decoding with fairseq-generate, scores with significance tests, NLL of the references."""
