"""Many runs from one dense model, and the curve that they draw together."""
