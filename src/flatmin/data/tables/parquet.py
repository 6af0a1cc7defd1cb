"""Parquet: streamed in batches of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatmin.core.arrays import Float
from flatmin.core.errors import DataError, FlatminError
from flatmin.data.tables.source import Place
from flatmin.data.tables.table import (
    DROP_HINT,
    ROWS,
    Reading,
    Table,
    checked,
    choose_columns,
    from_arrow,
    one_line,
    pyarrow_part,
)


def parquet_table(place: Place, reading: Reading) -> Table:
    pa, pq = pyarrow_part("parquet")
    path = place.name
    how = {"buffer_size": 1 << 18, "pre_buffer": False}
    try:
        with place.open() as stream:
            schema = pq.ParquetFile(stream, **how).schema_arrow
    except Exception as error:  # whatever a damaged file makes the library raise
        raise DataError(f"{path}: not a readable Parquet file ({one_line(error)})") from None
    names = [name for name in schema.names if not re.fullmatch(r"__index_level_\d+__", name)]
    choice = choose_columns(path, names, reading)
    labels = choice.labels
    for name in choice.names:
        kind = schema.field(name).type
        nested = pa.types.is_nested(kind) and not pa.types.is_dictionary(kind)
        tests = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean)
        if name not in labels and not (
            any(test(kind) for test in tests) or pa.types.is_decimal(kind)
        ):
            hint = choice.hint(name, not nested)
            raise DataError(f"{path}: column {name!r} is of type {kind}, not numbers; {hint}")
        if name in labels and nested:
            raise DataError(
                f"{path}: column {name!r} is of type {kind}, not text or numbers; {DROP_HINT}"
            )

    def blocks() -> Iterator[Float]:
        order = list(choice.names)
        try:
            with place.open() as stream:
                file = pq.ParquetFile(stream, **how)
                for batch in file.iter_batches(batch_size=ROWS, columns=order):
                    yield from_arrow(batch.select(order), order, labels)
        except FlatminError:
            raise
        except Exception as error:
            raise DataError(f"{path}: not a readable Parquet file ({one_line(error)})") from None

    return checked(path, choice, blocks)
