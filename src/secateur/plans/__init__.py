"""What is to be done to a model, as plain data: print it, save it, apply it anywhere.

`Plan` is a cut of channels, `Masks` are zeros, `Outcome` tells how a target was met.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
