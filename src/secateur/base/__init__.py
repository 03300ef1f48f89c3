"""What every room uses and what knows nothing about pruning: errors, files, names, models, inputs, records, text."""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
