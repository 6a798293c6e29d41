"""Changes to the TPC-H source while a pipeline reads it: rows are inserted, updated and deleted all the time.

RF1 and RF2 are TPC-H's refresh functions (new orders with their lineitems come, old ones go); the updates are this project's.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from pymysql import MySQLError

from lakerelay.errors import SourceError
from lakerelay.local.tpch import DATABASE, Connect

ORDERS_AT_ONCE = 5

# (table, statement). %(low)s: a random key; %(high)s: some keys on; %(fresh)s: what makes a key new; %(amount)s, %(days)s, %(text)s: random.
UPDATES = (
    # Moves rows to another month, so to another partition of a table that is partitioned by it.
    ("lineitem", "UPDATE lineitem SET l_shipdate = l_shipdate + INTERVAL %(days)s DAY, l_comment = %(text)s WHERE l_orderkey BETWEEN %(low)s AND %(high)s"),
    (
        "lineitem",
        "UPDATE lineitem SET l_quantity = l_quantity + 1, l_extendedprice = l_extendedprice + %(amount)s WHERE l_orderkey BETWEEN %(low)s AND %(high)s",
    ),
    ("orders", "UPDATE orders SET o_orderstatus = 'P', o_totalprice = o_totalprice + %(amount)s WHERE o_orderkey BETWEEN %(low)s AND %(high)s"),
    ("customer", "UPDATE customer SET c_acctbal = c_acctbal - %(amount)s, c_comment = %(text)s WHERE c_custkey BETWEEN %(low)s AND %(high)s"),
    ("part", "UPDATE part SET p_retailprice = p_retailprice + %(amount)s, p_comment = %(text)s WHERE p_partkey BETWEEN %(low)s AND %(high)s"),
    ("supplier", "UPDATE supplier SET s_acctbal = s_acctbal + %(amount)s, s_comment = %(text)s WHERE s_suppkey BETWEEN %(low)s AND %(high)s"),
    (
        "partsupp",
        "UPDATE partsupp SET ps_availqty = ps_availqty + 1, ps_supplycost = ps_supplycost + %(amount)s WHERE ps_partkey BETWEEN %(low)s AND %(low)s + 1",
    ),
    ("nation", "UPDATE nation SET n_comment = %(text)s WHERE n_nationkey = %(low)s"),
    ("region", "UPDATE region SET r_comment = %(text)s WHERE r_regionkey = %(low)s"),
)
INSERTS = (
    ("customer", "SELECT c_custkey + %(fresh)s, c_name, c_address, c_nationkey, c_phone, c_acctbal, c_mktsegment, %(text)s FROM customer WHERE c_custkey"),
    ("part", "SELECT p_partkey + %(fresh)s, p_name, p_mfgr, p_brand, p_type, p_size, p_container, p_retailprice, %(text)s FROM part WHERE p_partkey"),
    ("supplier", "SELECT s_suppkey + %(fresh)s, s_name, s_address, s_nationkey, s_phone, s_acctbal, %(text)s FROM supplier WHERE s_suppkey"),
    ("partsupp", "SELECT ps_partkey + %(fresh)s, ps_suppkey, ps_availqty, ps_supplycost, %(text)s FROM partsupp WHERE ps_partkey"),
    ("nation", "SELECT n_nationkey + %(fresh)s, n_name, n_regionkey, %(text)s FROM nation WHERE n_nationkey"),
    ("region", "SELECT r_regionkey + %(fresh)s, r_name, %(text)s FROM region WHERE r_regionkey"),
)
KEYS = {"customer": "c_custkey", "part": "p_partkey", "supplier": "s_suppkey", "partsupp": "ps_partkey", "nation": "n_nationkey", "region": "r_regionkey"}
HIGHEST_KEY = {"supplier": 10_000, "customer": 150_000, "part": 200_000, "partsupp": 200_000, "orders": 6_000_000, "lineitem": 6_000_000}  # at scale 1
FIXED_SIZE = {"nation": 24, "region": 4}  # highest key at every scale; only rows added to these are deleted

RF1_ORDER = """INSERT IGNORE INTO orders SELECT %(new)s, o_custkey, 'O', o_totalprice + %(amount)s, o_orderdate, o_orderpriority, o_clerk, o_shippriority,
    %(text)s FROM orders WHERE o_orderkey = %(old)s"""
RF1_LINES = """INSERT INTO lineitem SELECT %(new)s, l_partkey, l_suppkey, l_linenumber, l_quantity, l_extendedprice, l_discount, l_tax, l_returnflag,
    l_linestatus,
    l_shipdate + INTERVAL %(days)s DAY, l_commitdate, l_receiptdate, l_shipinstruct, l_shipmode, %(text)s FROM lineitem WHERE l_orderkey = %(old)s"""
WORDS = ("quickly", "final", "ironic", "Müller", "naïve", "deposits", "it's", "packages", "crème", "\\N", "requests")


class Writer:
    """Changes rows at about `rate` rows a second from a thread of its own, between start() and stop(). A context manager.

    `changed` counts rows by (table, "insert" | "update" | "delete"). Each transaction is one refresh function or one statement.
    """

    def __init__(self, connect: Connect, scale: float, rate: float = 300.0, seed: int = 1) -> None:
        self.changed: Counter[tuple[str, str]] = Counter()
        self._connect, self._rate, self._random = connect, rate, random.Random(seed)  # noqa: S311 — test data
        self._highest = FIXED_SIZE | {table: max(1, int(key * scale)) for table, key in HIGHEST_KEY.items()}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tpch-writer", daemon=True)
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Counter[tuple[str, str]]:
        """End after the transaction under way; returns `changed`. Raises SourceError when the writer had failed."""
        self._stopping.set()
        self._thread.join()
        if self._error:
            raise SourceError(
                "The writer on the source stopped.", safe="What it had committed stays.", todo="See MySQL's log.", why=str(self._error)
            ) from self._error
        return self.changed

    @property
    def rows(self) -> int:
        return sum(self.changed.values())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        moves: list[Callable[[Any], None]] = [self._new_orders, self._old_orders, self._update, self._insert, self._delete]
        try:
            with self._connect(database=DATABASE, autocommit=False) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")  # INSERT … SELECT then locks no row that it reads
                started, before = time.monotonic(), self.rows
                while not self._stopping.is_set():
                    self._random.choices(moves, weights=(3, 3, 8, 1, 1))[0](cursor)
                    connection.commit()
                    self._stopping.wait(max(0.0, (self.rows - before) / self._rate - (time.monotonic() - started)))
        except (MySQLError, OSError) as error:
            self._error = error

    def _new_orders(self, cursor: Any) -> None:
        """RF1. TPC-H uses 8 of every 32 order keys; the new ones go into the gaps, so into the midst of every key range."""
        for old in self._order_keys(cursor):
            values = self._values("orders") | {"old": old, "new": self._random.randint(0, self._highest["orders"] // 32) * 32 + self._random.randint(8, 31)}
            if self._count(cursor.execute(RF1_ORDER, values), "orders", "insert"):
                self._count(cursor.execute(RF1_LINES, values), "lineitem", "insert")

    def _old_orders(self, cursor: Any) -> None:
        """RF2."""
        if keys := self._order_keys(cursor):
            self._count(cursor.execute("DELETE FROM lineitem WHERE l_orderkey IN %s", (keys,)), "lineitem", "delete")
            self._count(cursor.execute("DELETE FROM orders WHERE o_orderkey IN %s", (keys,)), "orders", "delete")

    def _order_keys(self, cursor: Any) -> list[int]:
        low = self._random.randint(0, self._highest["orders"])
        cursor.execute("SELECT o_orderkey FROM orders WHERE o_orderkey >= %s ORDER BY o_orderkey LIMIT %s", (low, ORDERS_AT_ONCE))
        return [key for (key,) in cursor.fetchall()]

    def _update(self, cursor: Any) -> None:
        table, statement = self._random.choice(UPDATES)
        self._count(cursor.execute(statement, self._values(table)), table, "update")

    def _insert(self, cursor: Any) -> None:
        table, source = self._random.choice(INSERTS)
        self._count(cursor.execute(f"INSERT IGNORE INTO {table} {source} BETWEEN %(low)s AND %(high)s", self._values(table)), table, "insert")

    def _delete(self, cursor: Any) -> None:
        table, _ = self._random.choice(INSERTS)
        values = self._values(table)
        if table in FIXED_SIZE:
            values["low"] = FIXED_SIZE[table] + 1
        statement = f"DELETE FROM {table} WHERE {KEYS[table]} >= %(low)s ORDER BY {KEYS[table]} LIMIT 6"  # noqa: S608 — the names are this module's
        self._count(cursor.execute(statement, values), table, "delete")

    def _values(self, table: str) -> dict[str, object]:
        low, draw = self._random.randint(0, self._highest[table]), self._random
        return {
            "low": low,
            "high": low + (32 if table in {"orders", "lineitem"} else 5),  # 8 orders
            "fresh": (self._highest[table] + 10) * draw.randint(1, 100),
            "amount": f"{draw.randint(1, 9999) / 100:.2f}",
            "days": draw.choice((-40, -31, -1, 0, 1, 31, 40)),
            "text": " ".join(draw.choices(WORDS, k=2)),
        }

    def _count(self, rows: int, table: str, operation: str) -> int:
        self.changed[table, operation] += rows
        return rows
