"""The CPU engine that leaves zeros out.

In: a masked model and example inputs. Out: a module for inference, with each layer sparse where that is measured to be
faster. The kernels are in `kernels/`.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
