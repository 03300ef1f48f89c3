"""From a target such as "latency=0.5" to a plan: a search over predicted costs, and the stopwatch."""
