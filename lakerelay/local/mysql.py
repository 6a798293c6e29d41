"""The source: the `mysqld` that the settings name, else the PATH's, else MySQL 8.0.12 from Maven Central.

Users, on loopback only: root, for whoever creates databases, and `source.user`, with what Debezium needs and nothing more.
"""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql

from lakerelay.config import Local, Settings
from lakerelay.errors import StackError
from lakerelay.local import LOOPBACK, jars, native, secrets

if TYPE_CHECKING:
    from pymysql.connections import Connection

GRANTS = "SELECT, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT, LOCK TABLES"
LIBRARIES = {"libaio.so.1": "libaio1", "libnuma.so.1": "libnuma1"}  # what the downloaded mysqld is linked to → Debian's package


def connect(local: Local, user: str = "root", **options: Any) -> "Connection[Any]":
    """An autocommitting connection as `root`, else as the source's user. Options are pymysql's."""
    password = secrets.read(local, "mysql-root") if user == "root" else secrets.source_password(local)
    given: dict[str, Any] = {"host": LOOPBACK, "port": local.mysql_port, "charset": "utf8mb4", "autocommit": True} | options
    return pymysql.connect(user=user, password=password, **given)


def installed(local: Local) -> str | None:
    """The mysqld that the settings name, else the system's own (not MariaDB's, whose binlog Debezium's MySQL connector does not read)."""
    if local.mysqld is not None:
        if shutil.which(local.mysqld) is None:
            raise StackError("What is named as mysqld is not an executable file.", todo="Correct `mysqld` in [local].", mysqld=str(local.mysqld))
        return str(local.mysqld)
    program = shutil.which("mysqld")
    return program if program and "mariadb" not in _version(program, dict(os.environ)).lower() else None


@dataclass(frozen=True)
class Mysql:
    settings: Settings
    name: str = "mysql"
    gigabytes: float = 1.0
    seconds: float = 300.0

    @cached_property
    def local(self) -> Local:
        assert self.settings.local is not None
        return self.settings.local

    @property
    def ports(self) -> dict[str, int]:
        return {"mysql_port": self.local.mysql_port}

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.local.mysql_port}"

    @cached_property
    def program(self) -> str:
        if found := installed(self.local):
            return found
        program = jars.folder() / "mysql" / "bin" / "mysqld"
        if not program.exists():
            raise StackError(
                f"No MySQL to download for {platform.system()} {platform.machine()}.", todo="Install MySQL 8.0 or later so that mysqld is on the PATH."
            )
        return str(program)

    @property
    def environment(self) -> dict[str, str]:
        return native.environment(self.local.folder)

    @property
    def command(self) -> list[str]:
        return [self.program, f"--defaults-file={self._folder / 'my.cnf'}"]

    @property
    def _folder(self) -> Path:
        return self.local.folder / "mysql"

    def prepare(self) -> None:
        """Write the configuration and, the first time, the system tables: whole or not at all."""
        data, part = self._folder / "data", self._folder / "data.part"
        self._folder.mkdir(parents=True, exist_ok=True)
        secrets.write(secrets.folder(self.local) / "mysql-users.sql", self._users())
        (self._folder / "my.cnf").write_text(self._configuration(data))
        if data.exists():
            return
        shutil.rmtree(part, ignore_errors=True)
        done = subprocess.run(
            [self.program, "--no-defaults", "--initialize-insecure", f"--datadir={part}", *self._as_user("--user=root")],
            env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise StackError("MySQL cannot make its data folder.", todo="", told=done.stderr[-2000:])
        part.rename(data)

    def is_ready(self) -> bool:
        try:
            for user in ("root", self.settings.source.user):
                connect(self.local, user, connect_timeout=2).close()
        except pymysql.MySQLError:
            return False
        return True

    def _as_user(self, option: str) -> list[str]:
        return [option] if os.geteuid() == 0 else []  # as root, mysqld wants to be told

    def _users(self) -> str:
        """Run by mysqld at each start before it takes connections, so there is no moment without passwords. One statement a line."""
        user = self.settings.source.user
        root, source = secrets.read(self.local, "mysql-root"), secrets.source_password(self.local)
        lines = ["SET SESSION sql_log_bin = 0", f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{root}'"]
        for name, password in (("root", root), (user, source)):
            lines.append(f"CREATE USER IF NOT EXISTS '{name}'@'{LOOPBACK}'")
            lines.append(f"ALTER USER '{name}'@'{LOOPBACK}' IDENTIFIED BY '{password}'")
        lines.append(f"GRANT ALL ON *.* TO 'root'@'{LOOPBACK}' WITH GRANT OPTION")
        lines.append(f"GRANT {GRANTS} ON *.* TO '{user}'@'{LOOPBACK}'")
        return "".join(f"{line};\n" for line in lines)

    def _configuration(self, data: Path) -> str:
        values = {
            "datadir": data,
            "port": self.local.mysql_port,
            "bind_address": LOOPBACK,
            "mysqlx": "OFF",
            "socket": "mysql.sock",  # in datadir: a path over 107 characters is refused
            "pid_file": "mysql.pid",
            "init_file": secrets.folder(self.local) / "mysql-users.sql",
            "skip_name_resolve": "ON",
            "character_set_server": "utf8mb4",
            "default_time_zone": "+00:00",
            "server_id": 1,
            "log_bin": "binlog",
            "binlog_row_image": "FULL",
            "binlog_expire_logs_seconds": 3 * 24 * 3600,
            "gtid_mode": "ON",
            "enforce_gtid_consistency": "ON",
            "innodb_buffer_pool_size": "512M",
            # Flushed to the system at each commit, to the disk once a second: a killed mysqld loses nothing, a power cut up to a second.
            "innodb_flush_log_at_trx_commit": 2,
            "sync_binlog": 0,
            "secure_file_priv": "NULL",  # no files by SQL on the server; LOAD DATA LOCAL sends them from the client
            "local_infile": "ON",
        }
        if _release(_version(self.program, self.environment)) < (8, 4):
            values["default_authentication_plugin"] = "mysql_native_password"  # no TLS and no key exchange on loopback
            values["binlog_format"] = "ROW"  # later the only one
            values["innodb_log_file_size"] = "256M"  # of two files
        else:
            values["innodb_redo_log_capacity"] = "512M"
        if os.geteuid() == 0:
            values["user"] = "root"
        return "[mysqld]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


def _version(program: str, environment: dict[str, str]) -> str:
    """`mysqld  Ver 8.0.12 for linux-glibc2.12 on x86_64 …`"""
    done = subprocess.run([program, "--no-defaults", "--version"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"{program} does not run.", todo="", told=done.stderr.strip())
    return done.stdout


def _release(version: str) -> tuple[int, int]:
    found = re.search(r"Ver (\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (8, 0)
