"""What this GPU makes of pruned layers: measured in a minute, whatever fails on the way."""
