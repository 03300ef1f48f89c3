from secateur.sparse.backend import why_unavailable as why_unavailable
from secateur.sparse.engine import SparseEngine as SparseEngine
from secateur.sparse.engine import sparse_engine as sparse_engine
from secateur.sparse.layers import SparseLinear as SparseLinear
