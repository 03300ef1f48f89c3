"""Importing this last, in the fork server, keeps what it imported away from the garbage collector of its children.

A measurement of memory collects garbage first, every time, and would look through all of torch.
"""

import gc

gc.collect()
gc.freeze()
