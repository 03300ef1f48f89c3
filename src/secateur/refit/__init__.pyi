from secateur.refit.calibration_set import read_batches as read_batches
from secateur.refit.calibration_set import share_of as share_of
from secateur.refit.processes import Processes as Processes
from secateur.refit.repairing import EXAMPLES as EXAMPLES
from secateur.refit.repairing import repair as repair
