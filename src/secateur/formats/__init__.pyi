from secateur.formats.exporting import export as export
from secateur.formats.known_formats import find_format as find_format
from secateur.formats.two_of_four import compressed as compressed
