"""Conditions that a JSON value fits its type without loss. Spark rounds a decimal, and drops the time of a date."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["fits", "fitted", "readable"]

_DIGITS = 38
"""The most digits of a decimal."""
_DATE = r"^\d{4,6}-\d{1,2}-\d{1,2}$"


def readable(kind: DataType) -> Any:
    """The type with which a value is read, so that a loss can be seen: a decimal with more digits, a date as text."""
    from pyspark.sql.types import ArrayType, DateType, DecimalType, MapType, StringType, StructField, StructType

    match kind:
        case StructType():
            return StructType([StructField(field.name, readable(field.dataType)) for field in kind.fields])
        case ArrayType():
            return ArrayType(readable(kind.elementType))
        case MapType():
            return MapType(kind.keyType, readable(kind.valueType))
        case DecimalType():
            return DecimalType(_DIGITS, _DIGITS - (kind.precision - kind.scale))
        case DateType():
            return StringType()
    return kind


def fitted(value: Column, kind: DataType) -> Column:
    """A value that was read as `readable(kind)`, as one of `kind`."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, DecimalType, MapType, StructType

    match kind:
        case DecimalType() | DateType():
            return value.try_cast(kind)
        case StructType() if _narrowed(kind):
            fields = [fitted(value[field.name], field.dataType).alias(field.name) for field in kind.fields]
            return F.when(value.isNotNull(), F.struct(*fields))
        case ArrayType() if _narrowed(kind):
            return F.transform(value, lambda element: fitted(element, kind.elementType))
        case MapType() if _narrowed(kind):
            return F.transform_values(value, lambda _, element: fitted(element, kind.valueType))
    return value


def fits(value: Column, kind: DataType) -> Iterator[Column]:
    """The condition for a value that was read as `readable(kind)` and is not null."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, DecimalType, MapType, StructType

    match kind:
        case StructType():
            for field in kind.fields:
                yield from _fits_nullable(value[field.name], field.dataType, field.nullable)
        case ArrayType():
            yield from _all_fit(value, kind.elementType, kind.containsNull)
        case MapType():
            yield from _all_fit(F.map_values(value), kind.valueType, kind.valueContainsNull)
        case DecimalType():
            yield value == value.try_cast(kind)
        case DateType():
            day = value.try_cast(kind)
            # Most dates are written as Spark writes them, and a comparison costs less than the pattern.
            yield F.coalesce(day.cast("string") == value, F.lit(False)) | (value.rlike(_DATE) & day.isNotNull())


def _fits_nullable(value: Column, kind: DataType, nullable: bool) -> Iterator[Column]:
    if not nullable:
        yield value.isNotNull()
    for fit in fits(value, kind):
        yield value.isNull() | fit


def _all_fit(values: Column, kind: DataType, nullable: bool) -> Iterator[Column]:
    from pyspark.sql import functions as F

    def fit(element: Column) -> Column:
        found = F.lit(True)
        for each in _fits_nullable(element, kind, nullable):
            found = found & F.coalesce(each, F.lit(False))
        return found

    if not nullable or _narrowed(kind) or _requires(kind):
        yield F.forall(values, fit)


def _narrowed(kind: DataType) -> bool:
    """True if the type is read as another one."""
    return bool(readable(kind) != _nullable(kind))


def _nullable(kind: DataType) -> Any:
    """The type as `readable` gives it, if it has no decimal and no date."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    match kind:
        case StructType():
            return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(kind.keyType, _nullable(kind.valueType))
    return kind


def _requires(kind: DataType) -> bool:
    """True if a part of the type may not be null."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            return any(not field.nullable or _requires(field.dataType) for field in kind.fields)
        case ArrayType():
            return not kind.containsNull or _requires(kind.elementType)
        case MapType():
            return not kind.valueContainsNull or _requires(kind.valueType)
    return False
