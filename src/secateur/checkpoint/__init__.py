"""Pruned models as files that run no code.

In: a model with what was applied to it. Out: a folder, and from it the same model again, or one sentence on what is
wrong with the folder.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
