"""Parts of the tiny-model trainer: configuration, corpus, tokenizer, network, optimiser, evaluation, export."""
