"""The source's binlog: where it stands, and how the server writes it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import total_ordering
from typing import TypeAlias

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.cursors import Cursor
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from lakerelay.config import Settings, source_password
from lakerelay.errors import SourceError

MySQL: TypeAlias = "Connection[Cursor]"

_LOCK_SECONDS = 3
_VARIABLES = (
    "version",
    "server_uuid",
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_value_options",
    "gtid_mode",
    "binlog_expire_logs_seconds",
    "binlog_expire_logs_auto_purge",
    "expire_logs_days",
    "show_gipk_in_create_table_and_information_schema",
)


@total_ordering
@dataclass(frozen=True)
class Position:
    """A binlog coordinate; ordered by epoch, file number and offset in the file, never by the file's name as text.

    >>> Position("binlog.999999", 4) < Position("binlog.1000000", 4)
    True
    >>> str(Position("binlog.000002", 348))
    'binlog.000002:348'
    """

    file: str
    pos: int
    gtids: str | None = field(default=None, compare=False)  # the set executed up to here, None where GTIDs are off
    epoch: int = 0  # how often another server had taken the source's place

    @property
    def file_number(self) -> int:
        return int(self.file.rpartition(".")[2])

    @property
    def seq(self) -> int:
        """One non-negative BIGINT whose order is the binlog's: epoch (7 bits), file number (24 bits), pos (32 bits)."""
        return self.epoch << 56 | self.file_number << 32 | self.pos

    def __lt__(self, other: "Position") -> bool:
        return (self.epoch, self.file_number, self.pos) < (other.epoch, other.file_number, other.pos)

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"


@dataclass(frozen=True)
class Server:
    """What of the server's settings matters to capture; words in upper case, as the server says them."""

    version: str
    uuid: str
    log_bin: bool
    format: str
    row_image: str
    row_value_options: str
    gtid_mode: str
    hides_keys: bool  # primary keys that MySQL made itself are in the binlog, but not in a table's definition
    retention: int | None  # seconds that a binlog file is kept, None = never purged


def connect(settings: Settings) -> MySQL:
    """A connection as the pipeline's user: a context manager. Raises SourceError, without the password."""
    source = settings.source
    try:
        return pymysql.connect(
            host=source.host, port=source.port, user=source.user, password=source_password(), charset="utf8mb4", connect_timeout=10, autocommit=True
        )
    except pymysql.MySQLError as error:
        raise SourceError(
            f"MySQL refuses the connection: {error}.",
            todo="See that it runs, and that user and password are right.",
            host=source.host,
            port=source.port,
            user=source.user,
        ) from error


def server(mysql: MySQL) -> Server:
    """The server's settings; a variable that this version does not have counts as its harmless value."""
    with mysql.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", (_VARIABLES,))
        found = {name.lower(): value for name, value in cursor.fetchall()}
    return Server(
        version=found["version"],
        uuid=found["server_uuid"],
        log_bin=found.get("log_bin", "OFF") == "ON",
        format=found.get("binlog_format", "ROW").upper(),  # the setting is gone where ROW is the only format
        row_image=found.get("binlog_row_image", "FULL").upper(),
        row_value_options=found.get("binlog_row_value_options", "").upper(),
        gtid_mode=found.get("gtid_mode", "OFF").upper(),
        hides_keys=found.get("show_gipk_in_create_table_and_information_schema", "ON") == "OFF",
        retention=_retention(found),
    )


def position(mysql: MySQL) -> Position:
    """The end of the binlog at this moment. Raises SourceError when the server writes none."""
    with mysql.cursor() as cursor:
        renamed = version_number(mysql) >= (8, 2)  # SHOW MASTER STATUS was removed in 8.4
        cursor.execute("SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS")
        row = cursor.fetchone()
    if row is None:
        raise SourceError("The server writes no binlog.", todo="Set log_bin in its configuration and restart it.")
    return Position(file=row[0], pos=int(row[1]), gtids=(row[4] or "").replace("\n", "") or None)


def lacks(mysql: MySQL, gtids: str) -> str:
    """Why capture cannot go on here behind these transactions, empty when it can."""
    with mysql.cursor() as cursor:
        cursor.execute("SELECT GTID_SUBSET(%s, @@global.gtid_executed), GTID_SUBSET(@@global.gtid_purged, %s)", (gtids, gtids))
        row = cursor.fetchone()
    assert row is not None
    if not row[0]:
        return "it does not have all transactions that were captured"
    return "" if row[1] else "its binlog no longer has all that come next"


def first_file(mysql: MySQL) -> str:
    """The oldest file of the binlog that the server still has."""
    with mysql.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        return str(cursor.fetchall()[0][0])


@contextmanager
def locked(mysql: MySQL, tables: Iterable[str], attempts: int = 10) -> Iterator[Position]:
    """A position up to which every change of `tables` (database.table) is to be seen by whoever reads them from now on; no more come within.

    The end of the binlog alone is not: a transaction stands in the binlog before it can be seen, and waits in between, for a disk or a replica.
    A read lock on the tables waits for those; new writes wait until it is given back. One that holds a table longer than 3 s is let through, and asked
    again: `attempts` times. Raises SourceError.
    """
    names = ", ".join(f"{quoted(table)} READ" for table in tables)
    with mysql.cursor() as cursor:
        try:
            cursor.execute(f"SET SESSION lock_wait_timeout = {_LOCK_SECONDS}")
            retrying = Retrying(retry=retry_if_exception(_waits_for_lock), stop=stop_after_attempt(attempts), wait=wait_fixed(2.0), reraise=True)
            retrying(cursor.execute, f"LOCK TABLES {names}")
        except pymysql.MySQLError as error:
            raise SourceError(
                f"MySQL gives no read lock for the moment in which the position is read: {error}.",
                todo="Let the transaction that holds a table end (SHOW PROCESSLIST), then run the task again.",
                tables=sorted(tables),
            ) from error
        try:
            yield position(mysql)
        finally:
            cursor.execute("UNLOCK TABLES")


def settled_position(mysql: MySQL, tables: Iterable[str], attempts: int = 10) -> Position:
    """As `locked`, with the lock given back at once."""
    with locked(mysql, tables, attempts) as settled:
        return settled


def _waits_for_lock(error: BaseException) -> bool:
    return isinstance(error, pymysql.MySQLError) and error.args[0] == ER.LOCK_WAIT_TIMEOUT


def version_number(mysql: MySQL) -> tuple[int, int]:
    """(major, minor)."""
    major, minor = mysql.get_server_info().split(".")[:2]  # type: ignore[no-untyped-call]
    return int(major), int(minor)


def quoted(name: str) -> str:
    """`database`.`table` for SQL, from database.table.

    >>> quoted("shop.odd`name")
    '`shop`.`odd``name`'
    """
    return ".".join(map(quoted_column, name.split(".")))


def quoted_column(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _retention(found: dict[str, str]) -> int | None:
    if found.get("binlog_expire_logs_auto_purge", "ON") == "OFF":
        return None
    seconds = int(found.get("binlog_expire_logs_seconds", "0")) or int(float(found.get("expire_logs_days", "0")) * 86_400)
    return seconds or None
