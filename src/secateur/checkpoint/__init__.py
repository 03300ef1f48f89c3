"""The checkpoint: a pruned model in a folder, that loads without code, without the full-size model, or not at all."""
