from secateur.channels.anatomy import inspect as inspect
from secateur.channels.cut_groups import find_cut_groups as find_cut_groups
from secateur.channels.planning import plan_channels as plan_channels
from secateur.channels.select import NothingToCut as NothingToCut
from secateur.channels.sensitivity_curves import CutGroup as CutGroup
from secateur.channels.sensitivity_curves import GroupCurve as GroupCurve
from secateur.channels.sensitivity_curves import Sensitivity as Sensitivity
from secateur.channels.target.candidates import require_runtime as require_runtime
