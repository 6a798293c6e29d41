"""Is everything fit for a pipeline? All that is not is named at once, each with what mends it."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lakerelay.capture import binlog, bodies, grants, source, topics
from lakerelay.capture.binlog import Server
from lakerelay.capture.connector import Connector
from lakerelay.capture.source import SourceTable
from lakerelay.columns import RESERVED
from lakerelay.config import Settings
from lakerelay.errors import LakerelayError, PreflightError, SourceError

log = logging.getLogger(__name__)

RETENTION = 86_400  # seconds; the least time that a stopped capture connector has to come back


@dataclass(frozen=True)
class Check:
    """`found` is what was seen; `mend` is empty when that is good."""

    name: str
    found: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{'FAIL' if self.mend else 'ok':<4} {self.name}: {self.found}" + (f"; mend: {self.mend}" if self.mend else "")


def preflight(settings: Settings) -> None:
    """Log a line for each check; raise PreflightError with all that failed."""
    checks = list(run(settings))
    for check in checks:
        log.log(logging.ERROR if check.mend else logging.INFO, "%s", check)
    if failed := [check for check in checks if check.mend]:
        told = "\n".join(f"  {check.name}: {check.found}\n    {check.mend}" for check in failed)
        raise PreflightError(f"{len(failed)} of {len(checks)} checks failed:\n{told}\n", todo="Mend them, then trigger again.")


def grants_needed(settings: Settings) -> list[str]:
    """The statements that give `source.user` what it needs: for the tables named in the settings, and those of patterns that it can see already."""
    names = {entry.name for entry in settings.tables if entry.name}
    try:
        with binlog.connect(settings) as mysql:
            names |= {table.name for table in source.tables(mysql, settings)}
    except SourceError as error:  # the account may not exist yet
        log.warning("%s Tables of patterns are left out.", error.what)
    return grants.needed(f"'{settings.source.user}'@'%'", names, needs_lock=settings.relay.locking == "brief")


def run(settings: Settings) -> Iterator[Check]:
    """All checks; a server that cannot be reached is one failed check, and those that need it are left out."""
    found: list[SourceTable] = []
    uuids: list[str] = []

    def of_source() -> Iterator[Check]:
        with binlog.connect(settings) as mysql:
            server = binlog.server(mysql)
            uuids.append(server.uuid)
            yield Check("mysql", f"{server.version} at {settings.source.host}:{settings.source.port}")
            yield from _binlog(server)
            found.extend(source.tables(mysql, settings))
            yield from _grants(mysql, settings, [table.name for table in found])
        yield from _tables(settings, found)

    yield from _guarded("mysql", of_source)
    yield from _guarded("kafka", lambda: _kafka(settings))
    yield from _guarded("connect", lambda: _connect(settings, found, *uuids))


def _guarded(name: str, checks: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from checks()
    except LakerelayError as error:
        facts = ", ".join(f"{key}={value}" for key, value in error.facts.items())
        yield Check(name, f"{error.what} ({facts})", error.todo)


def _binlog(server: Server) -> Iterator[Check]:
    restart = "in the server's configuration, then restart it"
    yield _is("log_bin", "ON" if server.log_bin else "OFF", "ON", f"set log_bin = binlog and server_id = 1 {restart}")
    yield _is("binlog_format", server.format, "ROW", "SET PERSIST binlog_format = 'ROW'; then reconnect the applications")
    yield _is("binlog_row_image", server.row_image, "FULL", "SET PERSIST binlog_row_image = 'FULL'; then reconnect the applications")
    partial = "SET PERSIST binlog_row_value_options = ''; then reconnect the applications"
    yield _is("binlog_row_value_options", server.row_value_options, "", partial)
    # Else a row in the binlog has a column more than Debezium knows of, and the capture of all tables fails.
    hidden = "show_gipk_in_create_table_and_information_schema"
    yield _is(hidden, "OFF" if server.hides_keys else "ON", "ON", f"SET PERSIST {hidden} = ON")
    kept = "for ever" if server.retention is None else f"{server.retention} s"
    short = server.retention is not None and server.retention < RETENTION
    mend = f"SET PERSIST binlog_expire_logs_seconds = {3 * RETENTION}; at least {RETENTION} is needed"
    yield Check("binlog_expire_logs_seconds", kept, mend if short else "")


def _is(name: str, found: str, wanted: str, mend: str) -> Check:
    return Check(name, found or "empty", "" if found == wanted else mend)


def _grants(mysql: binlog.MySQL, settings: Settings, tables: list[str]) -> Iterator[Check]:
    lacking = grants.missing(mysql, tables, needs_lock=settings.relay.locking == "brief")
    yield from (Check("grant", f"{settings.source.user} lacks {name}", statement) for name, statement in lacking.items())
    if not lacking:
        yield Check("grants", f"{settings.source.user} has all it needs")


def _tables(settings: Settings, found: list[SourceTable]) -> Iterator[Check]:
    names = {table.name for table in found}
    for entry in settings.tables:
        if entry.name is not None and entry.name not in names:
            yield Check(f"table {entry.name}", "not there, or not to be seen by this user", f"correct its name, or GRANT SELECT ON {binlog.quoted(entry.name)}")
        if entry.pattern is not None and not any(entry.matches(name) for name in names):
            yield Check(f"pattern {entry.pattern}", "matches no table that this user may see", "correct it, or grant SELECT on the tables")
    yield from (_table(settings, table) for table in found)
    shared = Counter(topics.data(settings.name, name) for name in names)
    for topic in (topic for topic, count in shared.items() if count > 1):
        yield Check(
            f"topic {topic}", "belongs to two tables, whose names differ in characters that Kafka does not allow", "take one of them out of the settings"
        )


def _table(settings: Settings, table: SourceTable) -> Check:
    entry = settings.table(table.name)
    declared = entry.key if entry else ()
    columns = {column.name for column in table.columns}
    if table.name.count(".") > 1 or "/" in table.name or "\\" in table.name:
        return Check(f"table {table.name}", "has a dot or a slash in its name", "rename it, or take it out of the settings")
    if unknown := [name for name in declared if name not in columns]:
        return Check(f"table {table.name}", f"has no column {', '.join(unknown)}", "correct `key` in its [[tables]] entry")
    if taken := sorted(columns.intersection(RESERVED)):
        return Check(f"table {table.name}", f"has columns that lakerelay adds itself: {', '.join(taken)}", "rename them, or take it out of the settings")
    if odd := sorted(name for name in columns if not name.isidentifier()):
        return Check(f"table {table.name}", f"has columns with names that Hudi does not allow: {', '.join(odd)}", "rename them, or take it out of the settings")
    if not (declared or table.key):
        if entry is None or entry.kind != "append":
            mend = 'set `key` in its [[tables]] entry to columns that are unique and never NULL, or kind = "append" to keep every change'
            return Check(f"table {table.name}", "has no primary key", mend)
        if settings.relay.locking == "none":
            return Check(f"table {table.name}", "has no key, and is read exactly only under a lock", 'set locking = "brief" in [relay], or give it a `key`')
    return Check(f"table {table.name}", f"key={','.join(declared or table.key) or 'none'} rows~={table.rows} bytes~={table.bytes}")


def _kafka(settings: Settings) -> Iterator[Check]:
    topics.present(settings, settings.name)
    yield Check("kafka", settings.kafka.bootstrap_servers)


def _connect(settings: Settings, tables: list[SourceTable], server_uuid: str = "") -> Iterator[Check]:
    """The worker itself tries the options: plugin, exactly-once support, the password placeholder, its own way to MySQL."""
    connector = Connector(settings, bodies.capture_name(settings), patience=10.0)
    wrong = connector.validate(bodies.capture(settings, tables or [SourceTable("none.none", (), (), 0, 0)], server_uuid))
    yield from (Check(f"connect {message.partition(':')[0]}", message.partition(": ")[2], _mend(message)) for message in wrong)
    if not wrong:
        yield Check("connect", f"{settings.connect.url}, Debezium, exactly once")


def _mend(message: str) -> str:
    option = message.partition(":")[0]
    if option == "exactly.once.support":
        return "set exactly.once.source.support=enabled in the worker's properties (docs: first preparing where several workers run), restart it"
    if option == "connector.class":
        return "put Debezium's MySQL connector into the worker's plugin.path, restart it"
    if option.startswith("database."):
        return "see that the worker reaches MySQL and that connect.source_password names the password of source.user in a file the worker may read"
    return f"see {option} in connect/capture.json"
