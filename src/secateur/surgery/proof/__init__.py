"""Independent checks of a plan: a float64 reference of full size, and a dry run without values."""
