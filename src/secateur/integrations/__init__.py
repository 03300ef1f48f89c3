"""Other people's trainers.

In: what they train. Out: the same trainers, with the cut kept. A file for each library; users import it by its name.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
