"""Prove: a cut model against an independent reference, in float64."""
