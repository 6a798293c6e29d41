"""What MySQL lets the pipeline's user do."""

import re
from collections.abc import Iterable

from lakerelay.capture.binlog import MySQL, quoted, quoted_column

_GRANT = re.compile(r"GRANT (?P<privileges>.+?) ON (?:TABLE )?(?P<place>\S.*) TO ", re.IGNORECASE)


def needed(account: str, tables: Iterable[str], needs_lock: bool) -> list[str]:
    """The statements that let an account do all that a pipeline over these tables does, and no more.

    >>> needed("'lakerelay'@'%'", ["shop.orders"], needs_lock=True)[1:]
    ["GRANT LOCK TABLES ON `shop`.* TO 'lakerelay'@'%';", "GRANT SELECT ON `shop`.`orders` TO 'lakerelay'@'%';"]
    """
    names = sorted(tables)
    databases = sorted({quoted_column(name.partition(".")[0]) for name in names}) if needs_lock else []
    return [
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {account};",
        *(f"GRANT LOCK TABLES ON {database}.* TO {account};" for database in databases),
        *(f"GRANT SELECT ON {quoted(name)} TO {account};" for name in names),
    ]


def missing(mysql: MySQL, tables: Iterable[str], needs_lock: bool) -> dict[str, str]:
    """Privilege that the user lacks → statement that grants it. Privileges of its default roles count."""
    with mysql.cursor() as cursor:
        cursor.execute("SET ROLE ALL" if mysql.get_server_info().startswith(("8", "9")) else "DO 0")  # type: ignore[no-untyped-call]
        cursor.execute("SHOW GRANTS")
        held = parsed(row[0] for row in cursor.fetchall())
        cursor.execute("SELECT CURRENT_USER()")
        ((account,),) = cursor.fetchall()
    user = "@".join(f"'{part}'" for part in account.rsplit("@", 1))
    anywhere = held.get("*.*", set())
    wanted = ["REPLICATION SLAVE", "REPLICATION CLIENT"]
    lacking = {name: f"GRANT {name} ON *.* TO {user};" for name in wanted if not _holds(anywhere, name)}
    for table in tables:
        database = f"{quoted_column(table.partition('.')[0])}.*"
        if needs_lock and not any(_holds(held.get(place, set()), "LOCK TABLES") for place in ("*.*", database)):
            lacking[f"LOCK TABLES on {database}"] = f"GRANT LOCK TABLES ON {database} TO {user};"
        if not any(_holds(held.get(place, set()), "SELECT") for place in ("*.*", database, quoted(table))):
            lacking[f"SELECT on {table}"] = f"GRANT SELECT ON {quoted(table)} TO {user};"
    return lacking


def parsed(statements: Iterable[str]) -> dict[str, set[str]]:
    """Place, such as *.* or `shop`.*, → privileges, out of SHOW GRANTS; privileges on columns alone are left out.

    >>> parsed(["GRANT SELECT, RELOAD ON *.* TO `a`@`%`", "GRANT SELECT ON `shop`.* TO `a`@`%`"])["`shop`.*"]
    {'SELECT'}
    """
    held: dict[str, set[str]] = {}
    for statement in statements:
        if found := _GRANT.match(statement):
            names = {name.strip().upper() for name in found["privileges"].split(",")}
            held.setdefault(found["place"].replace("\\_", "_").replace("\\%", "%"), set()).update(names)
    return held


def _holds(held: set[str], name: str) -> bool:
    return bool({name, "ALL", "ALL PRIVILEGES"} & held)
