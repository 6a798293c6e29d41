"""A source to try the pipeline on: the eight tables of TPC-H in MySQL, and a writer that keeps changing them.

Rows come from tpchgen-cli, which writes what TPC's dbgen would. https://github.com/clflushopt/tpchgen-rs
"""

import logging
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymysql import MySQLError
from pymysql.connections import Connection

from lakerelay.errors import SourceError

log = logging.getLogger(__name__)

DATABASE = "tpch"
Connect = Callable[..., "Connection[Any]"]  # takes pymysql.connect's keyword arguments, logs in as one who may create a database

DEFINITIONS = {
    "region": "r_regionkey INT, r_name CHAR(25) NOT NULL, r_comment VARCHAR(152), PRIMARY KEY (r_regionkey)",
    "nation": "n_nationkey INT, n_name CHAR(25) NOT NULL, n_regionkey INT NOT NULL, n_comment VARCHAR(152), PRIMARY KEY (n_nationkey)",
    "supplier": """s_suppkey INT, s_name CHAR(25) NOT NULL, s_address VARCHAR(40) NOT NULL, s_nationkey INT NOT NULL, s_phone CHAR(15) NOT NULL,
        s_acctbal DECIMAL(15, 2) NOT NULL, s_comment VARCHAR(101) NOT NULL, PRIMARY KEY (s_suppkey)""",
    "customer": """c_custkey INT, c_name VARCHAR(25) NOT NULL, c_address VARCHAR(40) NOT NULL, c_nationkey INT NOT NULL, c_phone CHAR(15) NOT NULL,
        c_acctbal DECIMAL(15, 2) NOT NULL, c_mktsegment CHAR(10) NOT NULL, c_comment VARCHAR(117) NOT NULL, PRIMARY KEY (c_custkey)""",
    "part": """p_partkey INT, p_name VARCHAR(55) NOT NULL, p_mfgr CHAR(25) NOT NULL, p_brand CHAR(10) NOT NULL, p_type VARCHAR(25) NOT NULL,
        p_size INT NOT NULL, p_container CHAR(10) NOT NULL, p_retailprice DECIMAL(15, 2) NOT NULL, p_comment VARCHAR(23) NOT NULL, PRIMARY KEY (p_partkey)""",
    "partsupp": """ps_partkey INT, ps_suppkey INT, ps_availqty INT NOT NULL, ps_supplycost DECIMAL(15, 2) NOT NULL, ps_comment VARCHAR(199) NOT NULL,
        PRIMARY KEY (ps_partkey, ps_suppkey)""",
    "orders": """o_orderkey BIGINT, o_custkey INT NOT NULL, o_orderstatus CHAR(1) NOT NULL, o_totalprice DECIMAL(15, 2) NOT NULL, o_orderdate DATE NOT NULL,
        o_orderpriority CHAR(15) NOT NULL, o_clerk CHAR(15) NOT NULL, o_shippriority INT NOT NULL, o_comment VARCHAR(79) NOT NULL, PRIMARY KEY (o_orderkey)""",
    "lineitem": """l_orderkey BIGINT, l_partkey INT NOT NULL, l_suppkey INT NOT NULL, l_linenumber INT, l_quantity DECIMAL(15, 2) NOT NULL,
        l_extendedprice DECIMAL(15, 2) NOT NULL, l_discount DECIMAL(15, 2) NOT NULL, l_tax DECIMAL(15, 2) NOT NULL, l_returnflag CHAR(1) NOT NULL,
        l_linestatus CHAR(1) NOT NULL, l_shipdate DATE NOT NULL, l_commitdate DATE NOT NULL, l_receiptdate DATE NOT NULL, l_shipinstruct CHAR(25) NOT NULL,
        l_shipmode CHAR(10) NOT NULL, l_comment VARCHAR(44) NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber)""",
}
TABLES = tuple(f"{DATABASE}.{table}" for table in DEFINITIONS)


@dataclass(frozen=True)
class Loaded:
    table: str
    rows: int
    skipped: bool  # it was there already


def create_tables(connect: Connect, scale: float, tables: Collection[str] = tuple(DEFINITIONS)) -> list[Loaded]:
    """Make the database hold these tables of TPC-H at `scale` (1.0: 6 million lineitems), leaving those that are whole as they are.

    A table's comment is set once all its rows are in, so one that an interrupt left half loaded is made again.
    Raises SourceError when a table holds another scale: replacing it would pull rows from under a running pipeline.
    """
    mark = f"TPC-H scale {scale:g}"
    with connect(local_infile=True, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4")
        cursor.execute("SELECT table_name, table_comment FROM information_schema.tables WHERE table_schema = %s", DATABASE)
        comments = dict(cursor.fetchall())
        if other := {table: comment for table, comment in comments.items() if comment.startswith("TPC-H") and comment != mark}:
            todo = "Ask for that scale, or run `lakerelay down --erase` first."
            raise SourceError("The source holds TPC-H of another scale.", todo=todo, asked=mark, **other)
        missing = [table for table in tables if comments.get(table) != mark]
        if missing:
            cursor.execute("SET GLOBAL local_infile = 1")
        with tempfile.TemporaryDirectory(prefix="lakerelay-tpch-") as folder:
            for table in missing:
                _load(cursor, table, mark, _generate(table, scale, Path(folder)))
        return [Loaded(table, _count(cursor, table), table not in missing) for table in tables]


def _generate(table: str, scale: float, folder: Path) -> Path:
    program = shutil.which("tpchgen-cli", path=sysconfig.get_path("scripts")) or shutil.which("tpchgen-cli")
    if program is None:
        raise SourceError("tpchgen-cli is not installed.", todo="Install the `local` extra: uv sync --extra local.")
    subprocess.run([program, "--quiet", "--scale-factor", str(scale), "--tables", table, "--output-dir", str(folder)], check=True)
    return folder / f"{table}.tbl"


def _load(cursor: Any, table: str, mark: str, rows: Path) -> None:
    cursor.execute(f"USE {DATABASE}")
    cursor.execute(f"DROP TABLE IF EXISTS {table}")
    cursor.execute(f"CREATE TABLE {table} ({DEFINITIONS[table]})")
    try:
        cursor.execute(f"LOAD DATA LOCAL INFILE %s INTO TABLE {table} FIELDS TERMINATED BY '|' LINES TERMINATED BY '|\\n'", str(rows))
    except MySQLError as error:
        raise SourceError("MySQL did not load TPC-H's rows.", todo="Run it again.", table=table, answer=str(error)) from error
    cursor.execute(f"ALTER TABLE {table} COMMENT = %s", mark)
    rows.unlink()
    log.info("source table created table=%s.%s", DATABASE, table)


def _count(cursor: Any, table: str) -> int:
    cursor.execute(f"SELECT COUNT(*) FROM {DATABASE}.{table}")  # noqa: S608 — the names are this module's
    return int(cursor.fetchone()[0])
