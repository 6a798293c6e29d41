"""TPC-H Q1 on the lake and on MySQL. As a program: `python -m lakerelay.demo.q1 <table's path>` prints the lake's answer, a JSON list a line."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from pymysql.connections import Connection
from rich.table import Table

from lakerelay.errors import LakeError

COLUMNS = ("flag", "status", "sum_qty", "sum_base_price", "sum_disc_price", "sum_charge", "avg_qty", "avg_price", "avg_disc", "count_order")
QUERY = """
SELECT l_returnflag, l_linestatus, SUM(l_quantity), SUM(l_extendedprice), SUM(l_extendedprice * (1 - l_discount)),
       SUM(l_extendedprice * (1 - l_discount) * (1 + l_tax)), AVG(l_quantity), AVG(l_extendedprice), AVG(l_discount), COUNT(*)
FROM {table}
WHERE l_shipdate <= DATE '1998-09-02'
GROUP BY l_returnflag, l_linestatus
ORDER BY l_returnflag, l_linestatus
"""  # pricing summary report; the date is that of the query's validation. https://www.tpc.org/tpch
_LAST_DIGIT = Decimal("0.000001")  # to which MySQL and Spark round averages

Row = tuple[str | Decimal, ...]


def on_mysql(mysql: "Connection[Any]") -> list[Row]:
    with mysql.cursor() as cursor:
        cursor.execute(QUERY.format(table="tpch.lineitem"))
        return [(flag, status, *map(Decimal, numbers)) for flag, status, *numbers in cursor.fetchall()]


def on_lake(path: str, environment: Mapping[str, str]) -> list[Row]:
    """In a Spark of its own. Raises LakeError with the end of what it printed when it fails."""
    answer = subprocess.run([sys.executable, "-m", __name__, path], env=dict(environment), capture_output=True, text=True, check=False)
    if answer.returncode:
        raise LakeError("Q1 failed on the lake.", safe="Nothing was changed.", todo="See what Spark printed.", path=path, printed=answer.stderr[-2000:])
    rows = (json.loads(line) for line in answer.stdout.splitlines() if line.startswith("["))
    return [(flag, status, *map(Decimal, numbers)) for flag, status, *numbers in rows]


def agree(one: Sequence[Row], other: Sequence[Row]) -> bool:
    """Whether both answers are the same, but for the last digit of an average.

    >>> agree([("A", Decimal("1.5"))], [("A", Decimal("1.50"))]), agree([("A", Decimal("1.5"))], [("A", Decimal("1.6"))]), agree([], [])
    (True, False, False)
    """
    return bool(one) and len(one) == len(other) and all(len(a) == len(b) and all(map(_same, a, b)) for a, b in zip(one, other, strict=True))


def _same(one: str | Decimal, other: str | Decimal) -> bool:
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return abs(one - other) <= _LAST_DIGIT
    return one == other


def side_by_side(lake: Sequence[Row], mysql: Sequence[Row]) -> Table:
    """A line for each answer of each group: its first columns and its count are enough to look at."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", *COLUMNS[:6], COLUMNS[-1]):
        shown.add_column(column, justify="left" if column in {"", "flag", "status"} else "right")
    for index in range(max(len(lake), len(mysql))):
        for name, answer in (("lake", lake), ("MySQL", mysql)):
            if index < len(answer):
                row = answer[index]
                shown.add_row(name, *(each if isinstance(each, str) else f"{each:,.2f}" for each in row[:6]), f"{row[-1]:,}")
    return shown


def _main(path: str) -> None:
    from lakerelay.lake import session

    spark = session.start("lakerelay-demo-q1")
    spark.read.format("hudi").load(path).createOrReplaceTempView("lineitem")
    for row in spark.sql(QUERY.format(table="lineitem")).collect():
        print(json.dumps([str(value) for value in row]))


if __name__ == "__main__":
    _main(sys.argv[1])
