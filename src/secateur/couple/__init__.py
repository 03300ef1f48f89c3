"""Which coordinates must live or die together.

In: a `Trace`. Out: `Group`s of coupled units and the `Bundle`s they are cut in, with the reasons for what is pinned.
NumPy only; `rules/` has a rule for each family of operators. Only `channels` comes in here.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
