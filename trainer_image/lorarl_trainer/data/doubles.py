"""Makes doubles of shorter floats in tables, by the decimal text that people wrote: 0.1, not the nearest float's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow


def with_doubles(table: pyarrow.Table) -> pyarrow.Table:
    """Convert columns of shorter floats, and those within lists, objects and maps, to doubles."""
    import pyarrow  # takes half a second, and runs on JSON lines do not need it
    import pyarrow.compute

    half, single, double, text = pyarrow.float16(), pyarrow.float32(), pyarrow.float64(), pyarrow.string()
    for index, field in enumerate(table.schema):
        column, name = table.column(index), field.name
        if (texts := _replaced(field.type, single, text)) != field.type:
            column = pyarrow.compute.cast(column, texts)
            column = pyarrow.compute.cast(column, _replaced(field.type, single, double))
        if (doubles := _replaced(column.type, half, double)) != column.type:  # Arrow writes halves with all digits
            values = [_with_doubles(one, column.type) for one in column.to_pylist()]
            column = pyarrow.chunked_array([pyarrow.array(values, doubles)])
        table = table.set_column(index, name, column)
    return table


def _replaced(kind: pyarrow.DataType, old: pyarrow.DataType, new: pyarrow.DataType) -> pyarrow.DataType:
    """Return a type with another one in place of `old`, at any depth."""
    import pyarrow

    if kind == old:
        return new
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([inner.with_type(_replaced(inner.type, old, new)) for inner in kind.fields])
    if pyarrow.types.is_map(kind):
        return pyarrow.map_(_replaced(kind.key_type, old, new), _replaced(kind.item_type, old, new))
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_replaced(kind.value_type, old, new)))
    if pyarrow.types.is_large_list(kind):
        return pyarrow.large_list(kind.value_field.with_type(_replaced(kind.value_type, old, new)))
    if pyarrow.types.is_fixed_size_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_replaced(kind.value_type, old, new)), kind.list_size)
    return kind


def _with_doubles(value: Any, kind: pyarrow.DataType) -> Any:
    """Return a value of a type with the halves in it by their shortest text."""
    import pyarrow

    if value is None:
        return None
    if kind == pyarrow.float16():
        return float(str(np.float16(value)))
    if pyarrow.types.is_struct(kind):
        return {inner.name: _with_doubles(value[inner.name], inner.type) for inner in kind.fields}
    if pyarrow.types.is_map(kind):
        return [(_with_doubles(key, kind.key_type), _with_doubles(one, kind.item_type)) for key, one in value]
    if hasattr(kind, "value_type") and isinstance(value, list):
        return [_with_doubles(one, kind.value_type) for one in value]
    return value
