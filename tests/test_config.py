"""What a wrong pipeline.toml is answered with."""

from pathlib import Path

import pytest

from lakerelay import config
from lakerelay.errors import SettingsError
from tests.conftest import PROJECT

GOOD = """
name = "shop"
[source]
host = "mysql.example"
[kafka]
bootstrap_servers = "kafka.example:9092"
[connect]
url = "http://connect.example:8083"
source_password = "${file:/secrets/source.properties:password}"
[lake]
path = "s3a://lake/shop"
[[tables]]
name = "shop.orders"
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(config.SETTINGS_VARIABLE, raising=False)

    def write(text: str) -> Path:
        file = tmp_path / "pipeline.toml"
        file.write_text(text)
        return file

    return write


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'name = "shop"\n[source]',
            'name = "Shop!"\n[source]',
            "name: must be lower-case letters, digits and underscores, starting with a letter, got 'Shop!'",
        ),
        ('host = "mysql.example"', 'host = "mysql.example"\nport = 0', "source.port: Input should be greater than or equal to 1"),
        ('host = "mysql.example"', 'hots = "mysql.example"', "source.hots: Extra inputs are not permitted"),
        ('host = "mysql.example"', 'hots = "mysql.example"', "source.host: Field required"),
        ('"${file:/secrets/source.properties:password}"', '"hunter2"', "connect.source_password: must be a Kafka Connect config provider's placeholder"),
        ('path = "s3a://lake/shop"', "", "lake.path: Field required"),
        ('[[tables]]\nname = "shop.orders"', "", "tables: Field required"),
        ('name = "shop.orders"', 'name = "orders"', "tables.0: name must be database.table, without a slash, got 'orders'"),
        ('name = "shop.orders"', 'name = "shop.../etc"', "tables.0: name must be database.table, without a slash, got 'shop.../etc'"),
        ('name = "shop.orders"', 'pattern = "shop\\\\.(orders"', "tables.0: pattern is not a regular expression"),
        ('name = "shop.orders"', 'name = "shop.orders"\npattern = "x"', "tables.0: needs either name or pattern"),
        ('name = "shop.orders"', 'name = "shop.orders"\ntype = "delta"', "tables.0.type: Input should be 'cow' or 'mor'"),
        ('name = "shop.orders"', 'name = "shop.orders"\nkind = "append"\nkey = ["id"]', "tables.0: a table of kind append keeps every change as a row"),
        ('name = "shop.orders"', 'name = "shop.orders"\ninto = "shop.all"', "tables.0: into needs a pattern"),
        ('name = "shop.orders"', 'pattern = "shop_.*"\ninto = "../all"', "tables.0: into must be database.table, without a slash, got '../all'"),
        ('name = "shop.orders"', 'name = "shop.orders"\nbuckets = 0', "tables.0.buckets: Input should be greater than or equal to 1"),
        ('name = "shop.orders"', 'name = "shop.orders"\n[[tables]]\nname = "shop.orders"', "file: tables named more than once: shop.orders"),
        ("[lake]", "[relay]\nlanes = 0\n[lake]", "relay.lanes: Input should be greater than or equal to 1"),
        ("[lake]", "[stream]\nmax_events_per_batch = -5\n[lake]", "stream.max_events_per_batch: Input should be greater than or equal to 1"),
        ("[lake]", "[lake", "The settings file is not TOML"),
    ],
)
def test_bad_settings_are_named_with_their_file(written, old: str, new: str, message: str) -> None:
    """Each wrong value is found before anything starts, by its place in the file."""
    assert old in GOOD
    file = written(GOOD.replace(old, new))
    with pytest.raises(SettingsError) as raised:
        config.load(file)
    assert message in str(raised.value)
    assert str(file) in str(raised.value)


def test_all_errors_are_named_at_once(written) -> None:
    """A person mends a file once, not error by error."""
    file = written(GOOD.replace("mysql.example", "").replace('host = ""', "port = 0").replace('name = "shop.orders"', 'name = "orders"'))
    with pytest.raises(SettingsError) as raised:
        config.load(file)
    assert {"source.host", "source.port", "tables.0"} <= {line.strip().partition(":")[0] for line in str(raised.value).splitlines()}


def test_a_password_is_never_repeated_in_an_error(written) -> None:
    """What was put where a placeholder belongs may be a real password."""
    with pytest.raises(SettingsError) as raised:
        config.load(written(GOOD.replace('"${file:/secrets/source.properties:password}"', '"hunter2"')))
    assert "hunter2" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        config.load(tmp_path / "absent.toml")


def test_environment_variables_override_the_file(written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKERELAY_RELAY__LANES", "7")
    assert config.load(written(GOOD)).relay.lanes == 7


def test_an_exact_name_comes_before_a_pattern(written) -> None:
    """A table may be taken out of a pattern to be treated in another way."""
    text = GOOD.replace('name = "shop.orders"', 'pattern = "shop[.].*"\n[[tables]]\nname = "shop.orders"\ntype = "cow"')
    settings = config.load(written(text))
    found = {name: (entry := settings.table(name)) and entry.type for name in ("shop.orders", "shop.items", "other.orders")}
    assert found == {"shop.orders": "cow", "shop.items": "mor", "other.orders": None}


def test_addresses_come_from_the_embedded_stack(written) -> None:
    settings = config.load(written('name = "demo"\n[local]\nmysql_port = 23306\n[[tables]]\nname = "a.b"'))
    assert (settings.source.host, settings.source.port, settings.kafka.bootstrap_servers) == ("127.0.0.1", 23306, "127.0.0.1:19092")


SETTINGS = config.load(PROJECT / "pipeline.toml")
SOURCE = ["tpch.customer", "tpch.lineitem", "tpch.orders", "tpch.part"]


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ([], SOURCE),
        (["tpch.orders"], ["tpch.orders"]),
        (["tpch.part", "tpch.lineitem"], ["tpch.lineitem", "tpch.part"]),
        ([r"tpch\.(customer|part|supplier|partsupp|nation|region)"], ["tpch.customer", "tpch.part"]),
    ],
)
def test_chosen_tables(given: list[str], chosen: list[str]) -> None:
    """None given means all; a pattern of the settings means every table that matches it."""
    assert SETTINGS.choose(given, SOURCE) == chosen


@pytest.mark.parametrize("name", ["tpch.secret", "mysql.user", "tpch.nation", "tpch.orders; DROP TABLE tpch.orders", ".*", ""])
def test_a_table_that_cannot_be_chosen_is_named(name: str) -> None:
    """Airflow's form offers the right names, but its API takes anything."""
    with pytest.raises(SettingsError, match="no such tables") as raised:
        SETTINGS.choose(["tpch.orders", name], SOURCE)
    assert raised.value.facts["given"] == [name]
