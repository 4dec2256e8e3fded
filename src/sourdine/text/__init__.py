"""Private training of models on text."""
