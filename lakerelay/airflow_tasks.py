"""What the DAG files share. Imported whenever Airflow parses them, so nothing heavy is imported here."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, Context, Param, RetryDecision, RetryPolicy

from lakerelay.config import Settings
from lakerelay.errors import LakerelayError, SettingsError

SPARK_CONNECTION = "lakerelay_spark"
SPARK_JOBS = Path(__file__).resolve().parents[1] / "spark_jobs"


class RetryWhatCanHeal(RetryPolicy):
    """A LakerelayError says itself whether the same call can succeed later; when it cannot, the task fails at once."""

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None) -> RetryDecision:  # noqa: ARG002
        if isinstance(exception, LakerelayError) and not exception.retryable:
            return RetryDecision.fail(reason="the same call cannot succeed until a person changes something")
        return RetryDecision.default()


DEFAULT_ARGS: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=15), "retry_policy": RetryWhatCanHeal()}


def tables_param(settings: Settings) -> Param:
    """A multi-select of the settings' tables; a pattern is offered as it is, since only the source knows what matches it."""
    choices = [table.name or table.pattern for table in settings.tables]
    return Param(
        [],
        type="array",
        items={"type": "string"},
        examples=choices,
        title="Tables",
        description_md="Which tables. None chosen: all tables of the settings. Through the API, a table that matches a pattern can be named too.",
    )


def chosen_tables(settings: Settings, given: Sequence[str], source: Sequence[str]) -> list[str]:
    """The tables of `source` (those that exist and fall under the settings) that `given` names, exactly or as a settings' pattern; all when empty.

    Raises SettingsError naming what is neither: Airflow's form offers the right ones, but its API takes anything.
    """
    patterns = {table.pattern: table for table in settings.tables if table.pattern is not None}
    if unknown := sorted(name for name in given if name not in source and name not in patterns):
        todo = "Choose among these tables, or the settings' patterns."
        raise SettingsError("There are no such tables to choose.", todo=todo, given=unknown, tables=sorted(source), patterns=sorted(patterns))
    return [table for table in source if not given or table in given or any(patterns[name].matches(table) for name in given if name in patterns)]


def spark_job(task_id: str, *arguments: str, **kwargs: Any) -> SparkSubmitOperator:
    """A task that runs spark_jobs/<task_id>.py; master and deploy mode come from the connection lakerelay_spark, jars from Spark's own defaults.

    Not durable: each job finds by itself what is left to do and fences an older one, so a run of its own is always right,
    while reconnecting after a clear would take an old success for a new one.
    """
    return SparkSubmitOperator(
        task_id=task_id,
        conn_id=SPARK_CONNECTION,
        application=str(SPARK_JOBS / f"{task_id}.py"),
        application_args=list(arguments),
        name=f"lakerelay-{task_id}",
        durable=False,
        **kwargs,
    )


def replace_param() -> Param:
    return Param(False, type="boolean", title="Load again", description_md="Load tables again that are loaded already.")


def lake_table(settings: Settings, table: str) -> Asset:
    """The asset that downstream DAGs can be scheduled on: one for each table of the lake."""
    database, name = table.split(".")
    return Asset(name=quote(f"{settings.name}/{table}"), uri=f"lakerelay://{settings.name}/{quote(database)}/{quote(name)}", group="lakerelay")
