"""Couple: which coordinates of which tensors live and die together. NumPy only; torch is never touched here."""
