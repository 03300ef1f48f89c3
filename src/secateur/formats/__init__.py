"""Models for other runtimes.

In: a model and example inputs. Out: an ONNX, OpenVINO or torch.export file, run and compared before it counts; int8;
weights in torch's 2:4 format.
"""

from secateur.base.doors import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
