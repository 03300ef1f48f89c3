"""Size, speed and memory of models, measured.

In: models and example inputs. Out: `Timing`s in turns beside a null control, `Comparison`s, a `Sheet`. Every runtime is
known here, and what this machine makes of channel counts.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
