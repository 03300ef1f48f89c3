"""A sparse engine in a folder, packed as it runs: it loads without being packed, folded or measured again."""
