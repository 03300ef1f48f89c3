"""Longer experiments: what each group of a model is worth, what this machine makes of pruning, and the demo."""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
