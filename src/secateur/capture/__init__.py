"""Capture: one forward pass becomes a `Trace`, a flat list of ATen calls. Only this knows torch's internals."""
