"""What people look at: HTML pages and console tables, made of results that other rooms computed."""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
