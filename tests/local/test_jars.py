"""Downloads: pinned, checked each time, mended."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lakerelay.errors import StackError
from lakerelay.local import jars, java, trust

SMALL = "kafka/jspecify-1.0.0.jar"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete cache that a test may damage: hard links, so no file is copied and the real ones stay as they are."""
    jars.fetch(print)
    shutil.copytree(jars.cache(), tmp_path / "cache", symlinks=True, copy_function=os.link)
    monkeypatch.setenv("LAKERELAY_CACHE", str(tmp_path / "cache"))
    for link in (file for file in jars.folder().rglob("*.jar") if file.is_symlink()):
        target = str(link.readlink())
        link.unlink()
        link.symlink_to(tmp_path / "cache" / "ivy" / target.partition("/ivy/")[2])
    return tmp_path / "cache"


def test_every_dependency_of_ivy_xml_is_pinned() -> None:
    here = Path(jars.__file__).parent
    wanted = {f"{each.attrib['name']}-{each.attrib['rev']}" for each in ET.parse(here / "ivy.xml").iter("dependency")}  # noqa: S314 — our own file
    assert [name for name in sorted(wanted) if not any(Path(file).name.startswith(name) for file in jars.pinned())] == []
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in jars.pinned().values())


def test_what_is_complete_is_not_downloaded_again(copy: Path) -> None:
    lines: list[str] = []
    jars.fetch(lines.append)
    assert lines == []


def test_a_damaged_jar_is_named_and_downloaded_again(copy: Path) -> None:
    damaged = (jars.folder() / SMALL).resolve()
    damaged.unlink()
    damaged.write_bytes(b"not a jar")
    assert jars.wrong() == [SMALL]
    lines: list[str] = []
    jars.fetch(lines.append)
    assert lines[0] == f"damaged, downloaded again: {SMALL}"
    assert jars.wrong() == []


def test_a_file_that_is_not_the_pinned_one_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maven Central, or somebody in between, hands out another file under the same name."""
    folder = jars.folder()
    monkeypatch.setattr(jars, "folder", lambda: folder)
    monkeypatch.setattr(jars, "pinned", lambda: {SMALL: "0" * 64})
    with pytest.raises(StackError, match=SMALL):
        jars.fetch(print)


def test_an_archive_half_unpacked_is_unpacked_again(copy: Path) -> None:
    shutil.rmtree(jars.folder() / "plugins")
    (jars.folder() / "plugins.part").mkdir()
    jars.fetch(print)
    assert list((jars.folder() / "plugins").glob("*/debezium-connector-mysql-*.jar"))


def test_the_trust_store_is_one_that_java_reads(tmp_path: Path) -> None:
    options = trust.options(tmp_path / "trust.p12")
    keytool = [str(java.home() / "bin" / "keytool"), "-list", "-keystore", str(tmp_path / "trust.p12"), "-storepass", "changeit"]
    listed = subprocess.run(keytool, capture_output=True, text=True, check=True).stdout
    found = re.search(r"contains (\d+) entr", listed)
    assert found is not None
    assert int(found[1]) > 50
    assert f"-Djavax.net.ssl.trustStore={tmp_path / 'trust.p12'}" in options
