"""What this machine makes of pruned layers: measured, explained, and kept for planning.

`study.py` runs the parts in order: standard sparse formats and where their time goes, sparse tensor cores, layers and
networks with fewer channels, and which channel counts the kernels like. `claims.py` judges what people say about
pruning by these numbers, and `cache.py` keeps them for the next time.
"""
