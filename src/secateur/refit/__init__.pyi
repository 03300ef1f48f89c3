from secateur.refit.repairing import Repaired as Repaired
from secateur.refit.repairing import repair as repair
