"""The SQL files of Debezium's own tests: 87 of them, from Maven Central, as statements that can be run in any database."""

import hashlib
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import httpx

from lakerelay.local import jars

_JAR = "debezium-connector-binlog-3.6.1.Final-tests.jar"
_URL = f"https://repo1.maven.org/maven2/io/debezium/debezium-connector-binlog/3.6.1.Final/{_JAR}"
_SHA256 = "247bd30355364008a482a6475bfa805bfe8737101f534a6fc7691429b18f80fb"
_FOLDER = "ddl/"

_TEXT = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`|/\*!.*?\*/"
_BLANK = r"\s+|--[^\n]*|\#[^\n]*|/\*(?!!).*?\*/"
_TOKEN = re.compile(rf"(?P<blank>{_BLANK})|(?P<text>{_TEXT})|\w+|.", re.DOTALL)
_ROUTINE = re.compile(r"CREATE\s+(DEFINER\s*=\s*\S+\s+)?(PROCEDURE|FUNCTION|TRIGGER|EVENT)\b", re.IGNORECASE)
_OPENS = re.compile(r"(BEGIN|CASE)\b", re.IGNORECASE)
_CLOSES = re.compile(r"END\b(?!\s+(IF|LOOP|REPEAT|WHILE)\b)", re.IGNORECASE)  # the others were not counted when they began
_NAME = r"(`[^`]+`|[\w-]+)"
_DATABASE = re.compile(rf"\b(?:CREATE\s+(?:DATABASE|SCHEMA)(?:\s+IF\s+NOT\s+EXISTS)?\s+{_NAME}|CREATE\s+TABLE\s+{_NAME}\s*\.)", re.IGNORECASE)
_USERS = re.compile(r"(CREATE|DROP|ALTER)\s+USER|GRANT|REVOKE|SET\s+PASSWORD|FLUSH", re.IGNORECASE)


@dataclass(frozen=True)
class File:
    name: str
    text: str

    @cached_property
    def statements(self) -> list[str]:
        """Without those about users, who are the whole server's. As in Debezium's tests, $$ is a semicolon within a statement."""
        return [statement.replace("$$", ";") for statement in split(self.text) if not _USERS.match(statement)]

    @cached_property
    def databases(self) -> dict[str, bool]:
        """Those that it speaks of beside the one that it is run in → whether it makes them itself."""
        found = [match for statement in self.statements for match in _DATABASE.findall(statement)]
        made = {name.strip("`") for name, _ in found if name}
        return {name.strip("`"): name.strip("`") in made for names in found for name in names if name}

    def called(self, database: str) -> dict[str, str]:
        """Its databases → what they are called when it is run in `database`: MySQL allows 64 letters."""
        return {name: f"{database}_{number}" for number, name in enumerate(self.databases, start=1)}

    def statements_in(self, database: str) -> Iterator[str]:
        for statement in self.statements:
            for name, called in self.called(database).items():
                statement = re.sub(rf"(?<![\w`])(?:`{name}`|{name})(?=\s*\.|\s*$|\s+CHARACTER|\s+DEFAULT)", f"`{called}`", statement)
            yield statement


def fetch() -> list[File]:
    """Every file, by name; brought into the cache when it is not there."""
    jar = jars.cache() / "tests" / _JAR
    if not jar.exists():
        content = httpx.get(_URL, timeout=60).raise_for_status().content
        assert hashlib.sha256(content).hexdigest() == _SHA256, "Maven Central gave another file"
        jar.parent.mkdir(parents=True, exist_ok=True)
        part = jar.with_suffix(".part")
        part.write_bytes(content)
        part.rename(jar)
    with zipfile.ZipFile(jar) as opened:
        names = [name for name in opened.namelist() if name.startswith(_FOLDER) and not name.endswith("/")]
        return [File(name.removeprefix(_FOLDER), opened.read(name).decode()) for name in sorted(names)]


def split(sql: str) -> list[str]:
    """Its statements, without comments; a routine with all of its body is one.

    >>> split("SELECT ';', 1; -- a; b\\nCREATE PROCEDURE p() BEGIN IF 1 THEN SELECT 2; END IF; END; SELECT 3")
    ["SELECT ';', 1", 'CREATE PROCEDURE p() BEGIN IF 1 THEN SELECT 2; END IF; END', 'SELECT 3']
    """
    found, statement, depth, last = [], "", 0, ""
    for token in _TOKEN.finditer(sql):
        if _ROUTINE.match(statement):
            depth += bool(_OPENS.match(sql, token.start())) * (last != "END") - bool(_CLOSES.match(sql, token.start()))
        if token[0] == ";" and depth <= 0:
            found.append(statement.strip())
            statement, depth = "", 0
        else:
            statement = f"{statement} ".lstrip() if token["blank"] else statement + token[0]
        if not token["blank"]:
            last = token[0].upper()
    return [each for each in [*found, statement.strip()] if each]
