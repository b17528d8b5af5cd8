"""What gather, index_select, scatter_add and index_add promise: an entry each."""

from kernelworks.ops.lookup.along_index.mutants import mutants_of
from kernelworks.templates.along_index import AlongIndex
from kernelworks.templates.op_package import OpTable

__all__ = ["TABLE"]

TABLE = OpTable.of(
    [
        AlongIndex(op_package=__file__, mutants=mutants_of, op_name="gather", adds=False, rows=False),
        AlongIndex(op_package=__file__, mutants=mutants_of, op_name="index_select", adds=False, rows=True),
        AlongIndex(op_package=__file__, mutants=mutants_of, op_name="scatter_add", adds=True, rows=False, source="src"),
        AlongIndex(op_package=__file__, mutants=mutants_of, op_name="index_add", adds=True, rows=True, source="source"),
    ]
)
