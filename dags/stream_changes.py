"""### Stream changes: keep the loaded tables equal to their source

One Spark application that reads the captured changes from Kafka and upserts them into Hudi, all loaded tables side by side.
It runs until it is stopped; a table that `full_load` finishes meanwhile is taken up while it runs.
A table that is not loaded yet waits: its changes stay in Kafka.

Unpause this DAG to stream, pause it and mark the running task as failed to stop. Where it stands is kept in the lake's commits, nowhere else:
stopped at any moment, killed, or started on another machine, it loses and repeats nothing. A second driver of the same pipeline ends the first.

**In the log**, a line for each micro-batch: rows and lag of each table, seconds.

**When it fails** it is started again. Three failed runs in a row pause the DAG: read the last lines of the log, mend what they name, unpause.
"""

from datetime import UTC, datetime

from airflow.sdk import dag

from lakerelay import airflow_tasks, config

settings = config.load()


@dag(
    schedule="@continuous",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    default_args=airflow_tasks.DEFAULT_ARGS,
    max_active_runs=1,
    max_consecutive_failed_dag_runs=3,
    catchup=False,
    tags=["lakerelay", settings.name],
    doc_md=__doc__,
)
def stream_changes() -> None:
    airflow_tasks.spark_job("stream_changes")


stream_changes()
