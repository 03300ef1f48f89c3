"""One forward pass as plain data.

In: a model and example inputs. Out: a `Trace`, the list of ATen calls with their values, the sizes that the model's
Python code computed, and the attributes they came from. Only this room knows torch's internals.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
