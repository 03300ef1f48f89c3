"""Importing this last, in the fork server, keeps what it imported away from the garbage collector of its children.

A measurement of memory collects garbage first, every time, and would look through all of torch.
"""

import gc

RARELY = (20_000, 20, 50)
"""How much is made before garbage is looked for: Python's own 700 cost a fifteenth of the time of the tests."""

gc.set_threshold(*RARELY)
gc.collect()
gc.freeze()
