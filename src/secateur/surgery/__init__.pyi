from secateur.surgery.applying import apply as apply
from secateur.surgery.cutting import cut as cut
from secateur.surgery.cutting import named_tensors as named_tensors
from secateur.surgery.holding import Hold as Hold
from secateur.surgery.holding import hold as hold
from secateur.surgery.proof.dry_run import dry_run_if_possible as dry_run_if_possible
from secateur.surgery.zeroing import masked_parameters as masked_parameters
