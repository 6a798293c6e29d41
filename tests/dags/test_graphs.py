"""The DAG files: they import quickly, they say how to run them, and the edges that protect data are there."""

import subprocess
import sys
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from lakerelay import airflow_tasks, config
from lakerelay.errors import ConnectError, PreflightError

PROJECT = Path(__file__).resolve().parents[2]
DAGS = PROJECT / "dags"
HEAVY = ("pyspark", "pymysql", "confluent_kafka", "pandas", "lakerelay.capture", "lakerelay.lake")


@pytest.fixture(scope="module")
def dags() -> dict[str, DAG]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(config.SETTINGS_VARIABLE, str(PROJECT / "pipeline.toml"))
        bag = DagBag(DAGS)
    assert bag.import_errors == {}
    return bag.dags


def test_each_file_is_one_dag_of_its_name(dags: dict[str, DAG]) -> None:
    assert sorted(dags) == sorted(file.stem for file in DAGS.glob("*.py"))


@pytest.mark.parametrize("name", ["full_load", "stream_changes", "verify_tables"])
def test_the_runbook_is_the_files_docstring(dags: dict[str, DAG], name: str) -> None:
    """A docstring that is not the file's first statement would leave doc_md empty, and the UI without a runbook."""
    runbook = dags[name].doc_md
    assert runbook is not None
    assert runbook.startswith("### ")
    assert "When it fails" in runbook
    assert all(f"`{parameter}`" in runbook for parameter in dags[name].params)


@pytest.mark.parametrize("name", ["full_load", "stream_changes", "verify_tables"])
def test_a_dag_file_holds_the_graph_only(name: str) -> None:
    assert len((DAGS / f"{name}.py").read_text().splitlines()) <= 120


def test_nothing_heavy_is_imported_when_the_files_are_parsed() -> None:
    """The DAG processor parses every file again and again; what a task needs is imported when it runs."""
    loaded = (
        f"import runpy, sys; [runpy.run_path(str(f)) for f in {[str(file) for file in DAGS.glob('*.py')]}]; print([m for m in {HEAVY} if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_the_position_is_fixed_before_any_row_is_read(dags: dict[str, DAG]) -> None:
    """A change between the scan of a row and the position would be in neither the full load nor the stream."""
    dag = dags["full_load"]
    assert dag.get_task("fix_position").upstream_task_ids == {"preflight"}
    assert dag.get_task("plan_relays").upstream_task_ids == {"fix_position"}
    assert dag.get_task("scan_relay").upstream_task_ids == {"plan_relays"}
    assert dag.get_task("load_tables").upstream_task_ids == {"plan_relays"}


def test_a_table_is_handed_over_after_its_load(dags: dict[str, DAG]) -> None:
    assert dags["full_load"].get_task("hand_over").upstream_task_ids == {"scan_relay", "load_tables"}


def test_an_empty_plan_still_ends_with_the_verdict(dags: dict[str, DAG]) -> None:
    """With nothing left to scan, scan_relay is skipped; hand_over must not be."""
    assert dags["full_load"].get_task("hand_over").trigger_rule == "none_failed"


def test_scans_run_side_by_side_as_the_settings_say(dags: dict[str, DAG]) -> None:
    assert dags["full_load"].get_task("scan_relay").max_active_tis_per_dagrun == config.load(PROJECT / "pipeline.toml").relay.lanes


@pytest.mark.parametrize("name", ["full_load", "stream_changes", "verify_tables"])
def test_one_run_at_a_time(dags: dict[str, DAG], name: str) -> None:
    assert dags[name].max_active_runs == 1


def test_each_table_gets_its_verdict_whether_or_not_another_differs(dags: dict[str, DAG]) -> None:
    assert dags["verify_tables"].get_task("verdict").trigger_rule == "all_done"
    assert dags["verify_tables"].get_task("verdict").upstream_task_ids == {"choose_tables", "verify_tables"}


def test_spark_jobs_are_found(dags: dict[str, DAG]) -> None:
    jobs = [dags["full_load"].get_task("load_tables"), dags["stream_changes"].get_task("stream_changes"), dags["verify_tables"].get_task("verify_tables")]
    assert all(Path(job.application).is_file() for job in jobs)


def test_the_trigger_form_offers_the_tables_of_the_settings(dags: dict[str, DAG]) -> None:
    form = dags["full_load"].params.get_param("tables").schema
    assert form["type"] == "array"
    assert form["examples"] == ["tpch.lineitem", "tpch.orders", r"tpch\.(customer|part|supplier|partsupp|nation|region)"]


@pytest.mark.parametrize(
    ("error", "action"),
    [(PreflightError("x", todo="y"), "fail"), (ConnectError("x", todo="y"), "default"), (OSError(), "default")],
)
def test_a_task_is_tried_again_when_that_can_help(error: Exception, action: str) -> None:
    assert airflow_tasks.RetryWhatCanHeal().evaluate(error, try_number=1, max_tries=2).action.value == action
