from secateur.formats.exporting import export as export
from secateur.formats.kinds import find_format as find_format
