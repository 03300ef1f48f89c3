"""One file for each command. They are quick to import: what a command needs, it imports when it runs."""
