"""What this machine makes of pruned layers: measured, explained, and kept for planning."""
