"""From a target, such as half the latency, to how much of each group goes."""
