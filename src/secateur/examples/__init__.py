"""Small real networks and data to try things on, without a download. Public: use them in your own experiments."""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
