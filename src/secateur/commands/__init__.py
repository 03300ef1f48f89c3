"""The command line: one file a command, thin and quick to start."""
