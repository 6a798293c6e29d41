"""The lake's side of a comparison, and the verdict: the same rows, the same checksum of every column."""

import logging
from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture.checksum import NULL, SEPARATOR, WHOLE_ROW
from lakerelay.capture.progress import Progress, VerifyRecord
from lakerelay.columns import SOFT_DELETED
from lakerelay.config import Settings
from lakerelay.errors import VerifyError
from lakerelay.lake import store

log = logging.getLogger(__name__)


def verify_tables(spark: SparkSession, settings: Settings, tables: Iterable[str]) -> None:
    """Compare the lake with what `checksum_source` recorded last, and log a verdict for each table.

    Right only while no change is under way. Raises VerifyError when a table differs.
    """
    with Progress(settings) as progress:
        recorded = progress.read().verified
        verdicts = []
        for name in tables:
            entry = settings.table(name)
            if entry and entry.kind != "upsert":
                log.info("not compared table=%s reason='a table of kind %s holds other rows than MySQL'", name, entry.kind)
                continue
            if name not in recorded:
                raise VerifyError("The source's side of a comparison is missing.", todo="Run checksum_source first.", table=name)
            verdict, differences = _compare(spark, settings, recorded[name])
            progress.write(verdict)
            verdicts.append((verdict, differences))
    log.info("verdict\n%s", "\n".join(_line(verdict, differences) for verdict, differences in verdicts))
    if different := {verdict.table: ", ".join(differences) for verdict, differences in verdicts if differences}:
        raise VerifyError(
            "Lake and source differ.",
            safe="Nothing was changed.",
            todo="If the source was being written meanwhile, verify again when it is quiet; else run full_load for these tables with replace set.",
            different=different,
        )


def _compare(spark: SparkSession, settings: Settings, record: VerifyRecord) -> tuple[VerifyRecord, list[str]]:
    """The record with its verdict, and what differs: `rows`, names of columns, `*` when only whole rows do."""
    table = store.lake_table(settings, record.table, record.key_columns)
    rows = store.read(spark, table).where(table.is_of(record.table))
    rows = rows.where(~F.col(SOFT_DELETED)) if table.soft_delete else rows
    compared = [name for name in record.source_checksums if name != WHOLE_ROW]
    texts = {name: F.coalesce(_text(record.columns[name], F.col(f"`{name}`"), rows.schema[name].dataType), F.lit(NULL)) for name in compared}
    digest = F.conv(F.substring(F.sha2(F.concat_ws(SEPARATOR, *texts.values()), 256), 1, 15), 16, 10).cast("decimal(20, 0)")
    sums = [F.sum(digest).alias(WHOLE_ROW), *(F.sum(F.crc32(text.cast("binary")).cast("decimal(20, 0)")).alias(name) for name, text in texts.items())]
    found = rows.agg(F.count(F.lit(1)), *sums).collect()[0]
    lake = dict(zip([WHOLE_ROW, *compared], (str(each or 0) for each in found[1:]), strict=True))
    differences = ["rows"] if found[0] != record.source_rows else []
    differences += [name for name, checksum in record.source_checksums.items() if lake[name] != checksum]
    return replace(record, verdict="different" if differences else "equal", lake_rows=found[0]), differences


def _text(kind: str, column: Column, lake_type: T.DataType) -> Column:
    """A value as text, as capture.checksum writes it in MySQL."""
    match kind:
        case "real":
            return _plain(column.cast("decimal(38, 10)"), 10)
        case "decimal":
            return _plain(column, lake_type.scale if isinstance(lake_type, T.DecimalType) else 0)
        case "instant":
            return F.date_format(column, "yyyy-MM-dd HH:mm:ss.SSSSSS")
        case "bytes":
            return F.hex(column)
        case "bit":
            return column.cast("int").cast("string")
        case _:
            return column.cast("string")


def _plain(column: Column, scale: int) -> Column:
    """Digits without an exponent: a cast would write a small decimal as 0E-10."""
    return F.translate(F.format_number(column, scale), ",", "")


def _line(record: VerifyRecord, differences: list[str]) -> str:
    left_out = [name for name in record.columns if name not in record.source_checksums]
    notes = [f"differs in {', '.join(differences)}"] * bool(differences) + [f"not compared: {', '.join(left_out)}"] * bool(left_out)
    return f"  {record.table:<40} {record.verdict:<9} source={record.source_rows:,} lake={record.lake_rows:,} {'; '.join(notes)}".rstrip()
