"""How the embedded router was made: corpus, examples, tokenizer, batches, training loop."""
