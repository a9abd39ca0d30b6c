"""Language: tokenizers, decoding, BERT's objectives, sources with a known entropy."""
