"""pipeline.toml → validated settings.

Read in this order, the later wins: the file, then environment variables (`LAKERELAY_RELAY__LANES=4` is `lanes` in `[relay]`).
Secrets are not in here: see `source_password`.
"""

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from lakerelay.errors import SettingsError

SETTINGS_VARIABLE = "LAKERELAY_SETTINGS"
PASSWORD_VARIABLE = "LAKERELAY_SOURCE_PASSWORD"  # noqa: S105 — the variable's name
SOURCE_CONNECTION = "lakerelay_source"
SPARK_JOBS = Path(__file__).resolve().parents[1] / "spark_jobs"

Port = Annotated[int, Field(ge=1, le=65535)]
Positive = Annotated[int, Field(ge=1)]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TABLE = re.compile(r"[^./\\\0]+\.[^./\\\0]+")
_PLACEHOLDER = re.compile(r"\$\{[^:}]+:.+\}")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Local(Section):
    """The embedded stack. With this section the addresses below come from it; without it they must be given."""

    folder: Path = Path(".lakerelay")
    mysqld: Path | None = None  # the server program of a MySQL that is installed; empty: from the PATH, else MySQL 8.0.12 from Maven Central
    mysql_port: Port = 13306
    kafka_port: Port = 19092
    controller_port: Port = 19093
    connect_port: Port = 18083
    airflow_port: Port = 18080

    @field_validator("folder")
    @classmethod
    def is_absolute(cls, value: Path) -> Path:
        return value.resolve()

    @property
    def password_file(self) -> Path:
        """Java properties, mode 0600: `password=` of the user that Debezium and lakerelay read MySQL as."""
        return self.folder / "secrets" / "source.properties"


class Source(Section):
    host: str
    port: Port = 3306
    user: str = "lakerelay"


class Kafka(Section):
    bootstrap_servers: str
    replication_factor: Positive = 1


class Connect(Section):
    url: str
    source_password: str  # a config provider's placeholder, resolved by the Connect worker alone

    @field_validator("source_password")
    @classmethod
    def is_placeholder(cls, value: str) -> str:
        if not _PLACEHOLDER.fullmatch(value):
            raise ValueError("must be a Kafka Connect config provider's placeholder such as ${file:/secrets/source.properties:password}, never the password")
        return value


class Lake(Section):
    path: str  # any Hadoop file system; a table stands at <path>/<database>/<table>


class Relay(Section):
    lanes: Positive = 2  # relays scanned at the same time
    rows: Positive = 1_500_000  # a relay's size; a larger table is split into key ranges
    locking: Literal["brief", "none"] = "brief"  # how the position before a scan is read: with the tables locked for that moment, or without


class Stream(Section):
    max_events_per_batch: Positive = 500_000
    seconds_between_batches: Annotated[float, Field(ge=0)] = 1.0
    writers: Positive = 2  # tables written side by side


class Verify(Section):
    """How gently verify_tables reads the source."""

    rows_per_range: Positive = 200_000  # read by one query
    pause_seconds: Annotated[float, Field(ge=0)] = 0.1  # after each range
    minutes: Annotated[float, Field(gt=0)] = 120  # after which what is left stays undecided


class Table(Section):
    """One table by its exact `name`, or all that match `pattern` (a regular expression over database.table)."""

    name: str | None = None
    pattern: str | None = None
    into: str | None = None  # database.table of the lake that all which match `pattern` are brought into; empty: each its own
    kind: Literal["upsert", "patch", "append"] = "upsert"
    key: tuple[str, ...] = ()  # empty: the primary key
    partition: str | None = None  # a Spark SQL expression over the table's columns
    soft_delete: bool = False  # a deleted row stays, with `_deleted`
    type: Literal["cow", "mor"] = "mor"
    on_schema_change: Literal["evolve", "stop"] = "evolve"
    on_bad_record: Literal["stop", "quarantine"] = "stop"
    buckets: Positive | None = None  # per partition; empty: from the number of rows

    @model_validator(mode="after")
    def names_one_thing(self) -> Self:
        if (self.name is None) == (self.pattern is None):
            raise ValueError("needs either name or pattern")
        if self.name is not None and not _TABLE.fullmatch(self.name):
            raise ValueError(f"name must be database.table, without a slash, got {self.name!r}")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern is not a regular expression: {error}") from error
        return self

    @model_validator(mode="after")
    def fits_its_kind(self) -> Self:
        if self.kind == "append" and (self.key or self.soft_delete):
            raise ValueError("a table of kind append keeps every change as a row: key and soft_delete have no meaning there")
        if self.into is not None and self.pattern is None:
            raise ValueError("into needs a pattern: it names the one lake table of all tables that match")
        if self.into is not None and not _TABLE.fullmatch(self.into):
            raise ValueError(f"into must be database.table, without a slash, got {self.into!r}")
        return self

    def matches(self, table: str) -> bool:
        return table == self.name if self.pattern is None else re.fullmatch(self.pattern, table) is not None


class Settings(BaseSettings):
    """All of pipeline.toml."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="LAKERELAY_", env_nested_delimiter="__")

    name: str  # the pipeline's: the first part of its topics' and connectors' names
    local: Local | None = None
    source: Source
    kafka: Kafka
    connect: Connect
    lake: Lake
    relay: Relay = Relay()
    stream: Stream = Stream()
    verify: Verify = Verify()
    tables: Annotated[tuple[Table, ...], Field(min_length=1)]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings

    @model_validator(mode="before")
    @classmethod
    def take_addresses_from_local(cls, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("local") is None:
            return given
        local = Local.model_validate(given["local"])
        derived = {
            "source": {"host": "127.0.0.1", "port": local.mysql_port},
            "kafka": {"bootstrap_servers": f"127.0.0.1:{local.kafka_port}"},
            "connect": {"url": f"http://127.0.0.1:{local.connect_port}", "source_password": f"${{file:{local.password_file}:password}}"},
            "lake": {"path": str(local.folder / "lake")},
        }
        return given | {name: values | given.get(name, {}) for name, values in derived.items()}

    @field_validator("name")
    @classmethod
    def is_a_plain_word(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError(f"must be lower-case letters, digits and underscores, starting with a letter, got {value!r}")
        return value

    @model_validator(mode="after")
    def names_each_table_once(self) -> Self:
        names = [table.name for table in self.tables if table.name is not None]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"tables named more than once: {', '.join(twice)}")
        return self

    def table(self, name: str) -> Table | None:
        """The entry that a source table falls under: one with its exact name, else the first pattern that matches."""
        entries = sorted(self.tables, key=lambda entry: entry.name is None)
        return next((entry for entry in entries if entry.matches(name)), None)

    def choose(self, given: Sequence[str], present: Sequence[str]) -> list[str]:
        """The tables of `present` that `given` names, exactly or by a pattern of the settings; all when it is empty.

        Raises SettingsError naming what is neither: Airflow's form offers the right ones, but its API takes anything.
        """
        patterns = {table.pattern: table for table in self.tables if table.pattern is not None}
        if unknown := sorted(name for name in given if name not in present and name not in patterns):
            todo = "Choose among these tables, or the settings' patterns."
            raise SettingsError("There are no such tables to choose.", todo=todo, given=unknown, tables=sorted(present), patterns=sorted(patterns))
        return [table for table in present if not given or table in given or any(patterns[name].matches(table) for name in given if name in patterns)]

    def lake_table(self, name: str) -> str:
        """The table of the lake, database.table, that a source table is brought into."""
        entry = self.table(name)
        return (entry and entry.into) or name


def load(path: str | os.PathLike[str] | None = None) -> Settings:
    """Read and validate the settings file: `path`, else $LAKERELAY_SETTINGS, else ./pipeline.toml.

    Relative paths in it are relative to the file. Raises SettingsError with one line for each thing that is wrong.
    """
    file = Path(path or os.environ.get(SETTINGS_VARIABLE) or "pipeline.toml").resolve()
    try:
        given = tomllib.loads(file.read_text())
    except OSError as error:
        raise SettingsError("The settings file cannot be read.", todo=f"Write it, or name it in ${SETTINGS_VARIABLE}.", file=str(file)) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The settings file is not TOML: {error}.", todo="Correct that line.", file=str(file)) from error
    if isinstance(given.get("local"), dict):
        given["local"] |= {name: str(file.parent / path) for name, path in ({"folder": ".lakerelay"} | given["local"]).items() if name in ("folder", "mysqld")}
    try:
        return Settings(**given)
    except ValidationError as error:
        wrong = "\n".join(f"  {'.'.join(str(part) for part in each['loc']) or 'file'}: {each['msg'].removeprefix('Value error, ')}" for each in error.errors())
        raise SettingsError(f"The settings file has errors:\n{wrong}\n", todo="Correct them.", file=str(file)) from error


def source_password() -> str:
    """The password of `source.user`, from $LAKERELAY_SOURCE_PASSWORD, else from the Airflow connection lakerelay_source.

    Read at the last moment by what connects to MySQL; never kept, logged or passed on.
    """
    if password := os.environ.get(PASSWORD_VARIABLE):
        return password
    from airflow.sdk import BaseHook  # only where no variable is set: outside Airflow it may be absent

    password = BaseHook.get_connection(SOURCE_CONNECTION).password
    if not password:
        raise SettingsError("No password for MySQL.", todo=f"Set ${PASSWORD_VARIABLE} or the password of the Airflow connection {SOURCE_CONNECTION}.")
    return password
