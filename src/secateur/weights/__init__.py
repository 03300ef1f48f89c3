"""Single weights: which may be pruned, what each is worth, and which go.

In: a model and an amount. Out: `Masks`.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
