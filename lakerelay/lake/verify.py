"""Is the lake equal to the source, while both go on? Sums by bucket of keys first; then the rows of buckets that differ, until each is equal or surely is not.

Each round looks at the source in a consistent snapshot, waits until the lake holds all changes up to it, and then looks at the lake. A row that was changed
since the snapshot says nothing, and is looked at again in the next round.
"""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import accumulate, islice
from operator import and_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakerelay.capture import binlog, bodies, checksum, source, topics
from lakerelay.capture.binlog import Position
from lakerelay.capture.checksum import BEYOND, LARGE, NULL, SEPARATOR, Compared, Digests, Key, Snapshot, Sums
from lakerelay.capture.connector import Connector
from lakerelay.capture.progress import Progress, VerifyRecord
from lakerelay.columns import SEQ, SOFT_DELETED
from lakerelay.config import Settings
from lakerelay.errors import VerifyError
from lakerelay.lake import store, topic
from lakerelay.lake.store import LakeTable

log = logging.getLogger(__name__)

_ROWS_PER_BUCKET, _BUCKETS = 1_000, 16_384
_AT_ONCE = 200_000  # rows of differing buckets that are held in memory
_SURE = 3  # rounds in which a row that nobody changed meanwhile differs
_ROUNDS = 10
_ENOUGH, _KEPT, _SHOWN = 1_000, 100, 20  # keys that differ: until no more are looked for, in the record, in the log
_LATE = "no time was left"
_POLL = 1.0  # seconds


def verify_tables(spark: SparkSession, settings: Settings, tables: Iterable[str]) -> None:
    """Compare the lake with the source, and log and record a verdict for each table.

    Right while changes are made and streamed. Raises VerifyError when a table differs, or stays undecided.
    """
    deadline = time.monotonic() + settings.verify.minutes * 60
    with Progress(settings) as progress:
        comparisons, verdicts = _comparisons(spark, settings, progress, tables, deadline)
        with checksum.snapshot(settings, deadline) as snapshot:
            for each in comparisons:
                each.sum_up(snapshot)
        progress.write(*verdicts)
        for each in comparisons:
            verdicts.append(each.compare())
            progress.write(verdicts[-1])
    log.info("verdict\n%s", "\n".join(map(_line, verdicts)))
    if failed := {verdict.table: verdict.why or f"{verdict.differing} keys" for verdict in verdicts if verdict.verdict != "equal"}:
        raise VerifyError(
            "Lake and source differ, or could not be compared.",
            safe="Nothing was changed.",
            todo="Keep this log, then run full_load for the tables that differ, with replace set.",
            tables=failed,
        )


def _comparisons(
    spark: SparkSession, settings: Settings, progress: Progress, names: Iterable[str], deadline: float
) -> tuple[list["_Comparison"], list[VerifyRecord]]:
    """What is to be compared, and the verdicts on tables that cannot be."""
    with binlog.connect(settings) as mysql:
        present = {table.name: table for table in source.tables(mysql, settings)}
    state, found, verdicts = progress.read(), [], []
    for name in names:
        entry, record = settings.table(name), state.tables.get(name)
        if entry and entry.kind != "upsert":
            log.info("not compared table=%s reason='a table of kind %s holds other rows than MySQL'", name, entry.kind)
            continue
        why = "not in MySQL" if name not in present else "not loaded" if record is None or record.state == "planned" else record.error
        if why:
            verdicts.append(VerifyRecord(name, "undecided", why, checked_at=time.time()))
            continue
        lake, compared = store.lake_table(settings, name, present[name].key), Compared(present[name], (entry and entry.key) or present[name].key)
        found.append(_Comparison(spark, settings, progress, lake, compared, deadline))
    return found, verdicts


@dataclass(frozen=True)
class _Suspect:
    """A key that was not equal: in how many rounds though nobody had changed it, and the digest of its row in the source."""

    rounds: int = 0
    digest: int | None = None


class _UndecidedError(Exception):
    """Why a comparison cannot go on."""


@dataclass
class _Comparison:
    """One table, and what is known of it: `differing`, surely, and how; `changing`: how many keys were changed whenever they were looked at."""

    spark: SparkSession
    settings: Settings
    progress: Progress
    lake: LakeTable
    compared: Compared
    deadline: float
    why: str = ""  # it is undecided
    sums: Sums = field(default_factory=lambda: Sums(Counter(), Counter()))
    lake_rows: int = 0
    differing: dict[Key, str] = field(default_factory=dict)
    changing: int = 0
    position: Position | None = None  # of the snapshot that was compared first
    passed: Position | None = None  # the lake holds all changes up to here

    @property
    def name(self) -> str:
        return self.compared.table.name

    @cached_property
    def buckets(self) -> int:
        return min(max(self.compared.table.rows // _ROWS_PER_BUCKET, 1), _BUCKETS)

    def sum_up(self, snapshot: Snapshot) -> None:
        """The source's side, in a snapshot that all tables share."""
        began, self.position = time.monotonic(), snapshot.after
        try:
            self.sums = snapshot.sums(self.compared, self.buckets)
        except TimeoutError:
            self.why = _LATE
        log.info("source read table=%s rows=%s seconds=%.1f", self.name, f"{self.sums.rows.total():,}", time.monotonic() - began)

    def compare(self) -> VerifyRecord:
        """The lake's side, and the verdict."""
        opened: dict[int, int] = {}
        try:
            if self.position and not self.why:
                self._wait(self.position)
                opened = self._differing_buckets()
            while opened and len(self.differing) < _ENOUGH:
                self._look_into({bucket: opened.pop(bucket) for bucket in _at_once(opened)})
        except TimeoutError:
            self.why = _LATE
        except _UndecidedError as error:
            self.why = str(error)
        for key, what in islice(self.differing.items(), _SHOWN):
            log.warning("differs table=%s key=%s in=%s", self.name, "/".join(key), what)
        return VerifyRecord(
            self.name,
            "different" if self.differing else "undecided" if self.why else "equal",
            self.why,
            self.sums.rows.total(),
            self.lake_rows,
            tuple(islice(self.differing.items(), _KEPT)),
            len(self.differing),
            self.changing,
            self.compared.left_out,
            self.position,
            time.time(),
        )

    def _differing_buckets(self) -> dict[int, int]:
        """Bucket → its rows in the source."""
        rows = self._rows()
        sums = rows.groupBy(self._bucket(rows)).agg(F.count(F.lit(1)), F.sum(self._digest(rows).cast("decimal(38, 0)"))).collect()
        there = {bucket: (count, int(digests)) for bucket, count, digests in sums}
        self.lake_rows = sum(count for count, _ in there.values())
        here = {bucket: (self.sums.rows[bucket], self.sums.digests[bucket]) for bucket in self.sums.rows}
        return {bucket: self.sums.rows[bucket] for bucket in here.keys() | there.keys() if here.get(bucket) != there.get(bucket)}

    def _look_into(self, buckets: Mapping[int, int]) -> None:
        """Until every row in these is equal, or surely differs."""
        suspects = self._round(buckets, {})
        for _ in range(_ROUNDS):
            if not suspects or len(self.differing) >= _ENOUGH:
                break
            suspects = self._round((), suspects)
        self.changing += len(suspects)

    def _round(self, buckets: Collection[int], suspects: Mapping[Key, _Suspect]) -> dict[Key, _Suspect]:
        """Compare the rows of `buckets`, or of `suspects`; returns those that are not equal."""
        with checksum.snapshot(self.settings, self.deadline) as snapshot:
            here = snapshot.rows(self.compared, self.buckets, buckets) if buckets else snapshot.look_up(self.compared, suspects)
        since = replace(snapshot.before, epoch=len(self.progress.read().epochs))
        self._wait(snapshot.after)
        there = self._of_buckets(buckets) if buckets else self._of_keys(suspects.keys() | here.keys())
        left = {}
        for key in here.keys() | there.keys():
            row, (lake_row, seq) = here.get(key), there.get(key, (None, 0))
            if row == lake_row and row != ():
                continue
            before, digest = suspects.get(key, _Suspect()), row[0] if row else None
            # A row that is not in the lake may have been deleted since: then it does not come back as it was.
            unchanged = digest == before.digest if lake_row is None else seq <= since.seq
            if before.rounds + unchanged >= _SURE:
                self.differing[key] = self._what(row, lake_row)
            else:
                left[key] = _Suspect(before.rounds + unchanged, digest)
        log.info("looked closer table=%s rows=%d not_equal=%d sure=%d", self.name, len(here.keys() | there.keys()), len(left), len(self.differing))
        return left

    def _what(self, row: Digests | None, lake_row: Digests | None) -> str:
        if row is None or lake_row is None:
            return "not in the lake" if lake_row is None else "not in MySQL"
        if not (row and lake_row):
            return "more than once in the lake" if row else "more than once in MySQL"
        return ", ".join(name for name, one, other in zip(self.compared.kinds, row[1:], lake_row[1:], strict=True) if one != other) or "*"

    def _of_buckets(self, buckets: Collection[int]) -> dict[Key, tuple[Digests, int]]:
        rows = self._rows()
        return self._collected(rows.where(self._bucket(rows).isin(list(buckets))), [self._digest(rows)])

    def _of_keys(self, keys: Collection[Key]) -> dict[Key, tuple[Digests, int]]:
        """With the CRC32 of each column."""
        rows = self._rows()
        names = [f"key_{number}" for number in range(len(self.compared.key))]
        wanted = self.spark.createDataFrame(list(keys), T.StructType([T.StructField(name, T.StringType()) for name in names]))
        same = reduce(and_, (text == F.col(name) for text, name in zip(self._key(rows), names, strict=True)))
        sums = [F.crc32(self._text(rows, name).cast("binary")) for name in self.compared.kinds]
        return self._collected(rows.join(F.broadcast(wanted), same), [self._digest(rows), *sums])

    def _collected(self, rows: DataFrame, digests: list[Column]) -> dict[Key, tuple[Digests, int]]:
        width = len(self.compared.key)
        found = rows.select(*self._key(rows), *digests, F.col(SEQ)).collect()
        places = {tuple(row[:width]): row[-1] for row in found}
        return {key: (row, places[key]) for key, row in checksum.keyed((tuple(row[:width]), tuple(row[width:-1])) for row in found).items()}

    def _rows(self) -> DataFrame:
        rows = store.read(self.spark, self.lake).where(self.lake.is_of(self.name))
        return rows.where(~F.col(SOFT_DELETED)) if self.lake.soft_delete else rows

    def _key(self, rows: DataFrame) -> list[Column]:
        return [self._text(rows, name) for name in self.compared.key]

    def _bucket(self, rows: DataFrame) -> Column:
        return F.pmod(F.crc32(F.concat_ws(SEPARATOR, *self._key(rows)).cast("binary")), F.lit(self.buckets))

    def _digest(self, rows: DataFrame) -> Column:
        texts = F.concat_ws(SEPARATOR, *(self._text(rows, name) for name in self.compared.kinds))
        return F.conv(F.substring(F.sha2(texts, 256), 1, 15), 16, 10).cast("bigint")

    def _text(self, rows: DataFrame, name: str) -> Column:
        return F.coalesce(_text(self.compared.kinds[name], F.col(f"`{name}`"), rows.schema[name].dataType), F.lit(NULL))

    def _wait(self, position: Position) -> None:
        """Until the lake holds all changes up to this position. Raises TimeoutError, _UndecidedError."""
        if self.passed and position <= self.passed:
            return
        capture = Connector(self.settings, bodies.capture_name(self.settings))
        while (stands := capture.position()) is None or stands < position:
            capture.check()
            self._pause(f"capture stands at {stands}, not yet at {position}")
        name = topics.data(topics.capture_prefix(self.settings), self.name)
        end = topics.end_offsets(self.settings, [name])[name]
        while not self._holds(name, end):
            record = self.progress.read().tables[self.name]
            if record.state == "stopped":
                raise _UndecidedError(record.error)
            self._pause("the lake is behind: does stream_changes run?")
        self.passed = position

    def _holds(self, topic_name: str, end: int) -> bool:
        """Whether nothing before this offset is still to be applied, and the lake has the source's columns."""
        commit = store.newest_commit(self.spark, self.lake)
        reached = commit and commit.sources.get(self.name)
        if not reached or not {name.lower() for name in self.compared.kinds} <= {name.lower() for name in store.columns(self.spark, self.lake).names}:
            return False
        # Offsets go to markers of transactions too.
        return reached.offset >= end or topic.records(self.spark, self.settings, topic_name, reached.offset).where(F.col("offset") < end).isEmpty()

    def _pause(self, why: str) -> None:
        if time.monotonic() > self.deadline:
            raise _UndecidedError(why)
        time.sleep(_POLL)


def _at_once(buckets: Mapping[int, int]) -> list[int]:
    """Some of them, with no more rows than fit into memory; one at least."""
    totals = accumulate(buckets.values())
    return [bucket for number, (bucket, total) in enumerate(zip(buckets, totals, strict=True)) if not number or total <= _AT_ONCE]


def _text(kind: str, column: Column, lake_type: T.DataType) -> Column:
    """A value as text, as capture.checksum writes it in MySQL."""
    if isinstance(lake_type, T.StringType):
        return column  # as more digits than Spark has are
    match kind:
        case "real":
            plain = _plain(column.cast("decimal(38, 10)"), 10)
            return F.when(F.abs(column) < F.lit(LARGE).cast("double"), plain).otherwise(F.when(column.isNotNull(), F.lit(BEYOND)))
        case "decimal":
            return _plain(column, lake_type.scale if isinstance(lake_type, T.DecimalType) else 0)
        case "instant":
            return F.date_format(column, "yyyy-MM-dd HH:mm:ss.SSSSSS")
        case "bytes":
            return F.hex(column)
        case "number":
            return column.cast("decimal(20, 0)").cast("string")
        case "shape":
            srid = F.lpad(F.hex(column["srid"]), 8, "0")
            return F.concat(*(F.substring(srid, first, 2) for first in (7, 5, 3, 1)), F.hex(column["wkb"]))
        case _:
            return column.cast("string")


def _plain(column: Column, scale: int) -> Column:
    """Digits without an exponent: a cast would write a small decimal as 0E-10."""
    return F.translate(F.format_number(column, scale), ",", "")


def _line(record: VerifyRecord) -> str:
    notes = [f"{record.differing:,} keys differ"] * bool(record.differing) + [record.why] * bool(record.why)
    notes += [f"{record.changing:,} keys kept changing"] * bool(record.changing)
    notes += [f"not compared: {', '.join(record.left_out)}"] * bool(record.left_out)
    return f"  {record.table:<40} {record.verdict:<9} source={record.source_rows:,} lake={record.lake_rows:,} {'; '.join(notes)}".rstrip()
