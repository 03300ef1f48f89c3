"""Repair: what a cut has left is fitted, layer by layer, to what the dense model gave. No labels, no training.

In: a model, a `Plan` or `Masks`, and a few hundred inputs. Out: the model with better weights, and `Repaired`.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
