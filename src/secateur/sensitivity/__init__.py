"""What each group of coupled layers is worth: the metric when it alone loses a share of its channels."""

from secateur.sensitivity.curves import GroupCurve, Sensitivity
from secateur.sensitivity.study import sensitivity

__all__ = ["GroupCurve", "Sensitivity", "sensitivity"]
