"""What the DAG files share. Imported whenever Airflow parses them, so nothing heavy is imported here."""

import os
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, Context, Param, RetryDecision, RetryPolicy

from lakerelay.config import PASSWORD_VARIABLE, SPARK_JOBS, Settings, source_password
from lakerelay.errors import LakerelayError

SPARK_CONNECTION = "lakerelay_spark"


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


class SparkJob(SparkSubmitOperator):
    """With `reads_source` the driver finds MySQL's password in its environment: it has no access to Airflow's connections itself."""

    def __init__(self, *, reads_source: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reads_source = reads_source

    def execute(self, context: Context) -> None:
        if self.reads_source:
            os.environ.setdefault(PASSWORD_VARIABLE, source_password())  # of this task's process; an operator's env_vars would be a rendered field
        super().execute(context)


def spark_job(task_id: str, *arguments: str, reads_source: bool = False) -> SparkJob:
    """A task that runs spark_jobs/<task_id>.py; master and deploy mode come from the connection lakerelay_spark, jars from Spark's own defaults.

    Not durable: each job finds by itself what is left to do and fences an older one, so a run of its own is always right,
    while reconnecting after a clear would take an old success for a new one.
    """
    return SparkJob(
        task_id=task_id,
        reads_source=reads_source,
        conn_id=SPARK_CONNECTION,
        application=str(SPARK_JOBS / f"{task_id}.py"),
        application_args=list(arguments),
        name=f"lakerelay-{task_id}",
        durable=False,
    )


def replace_param() -> Param:
    return Param(False, type="boolean", title="Load again", description_md="Load tables again that are loaded already.")


def lake_table(settings: Settings, table: str) -> Asset:
    """The asset that downstream DAGs can be scheduled on: one for each table of the lake."""
    return _asset(settings, table, "")


def verified_table(settings: Settings, table: str) -> Asset:
    """The same for DAGs that want a table only after it was found equal to the source."""
    return _asset(settings, table, "/verified")


def _asset(settings: Settings, table: str, suffix: str) -> Asset:
    database, name = table.split(".")
    address = f"lakerelay://{settings.name}/{quote(database)}/{quote(name)}{suffix}"
    return Asset(name=quote(f"{settings.name}/{table}{suffix}"), uri=address, group="lakerelay")
