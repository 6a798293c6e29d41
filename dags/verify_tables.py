"""### Verify tables: is the lake equal to the source

Compares each chosen table in MySQL and in the lake: number of rows, and a checksum of every column that does not depend on the order of rows.

**Parameters**

* `tables`: which tables; none chosen means all loaded ones.

**Tasks**

1. `checksum_source`: rows and checksums in MySQL, at a binlog position that it notes.
2. `verify_tables`: the same in the lake, once the stream has passed that position. The verdict is a table at the end of the log: `equal` or what differs.

Best while the source is quiet: rows that go on changing may be ahead in the lake.

**When it fails** and a table differs: trigger `full_load` for that table with `replace`, then this again; keep the log, a difference is a defect.
"""

from airflow.sdk import dag, get_current_context, task

from lakerelay import airflow_tasks, config

settings = config.load()


@task
def checksum_source() -> list[str]:
    from lakerelay.capture.checksum import checksum_source
    from lakerelay.capture.handover import loaded_tables

    tables = airflow_tasks.chosen_tables(settings, get_current_context()["params"]["tables"], loaded_tables(settings))
    checksum_source(settings, tables)
    return tables


@dag(
    schedule=None,
    params={"tables": airflow_tasks.tables_param(settings)},
    default_args=airflow_tasks.DEFAULT_ARGS | {"retries": 0},
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["lakerelay", settings.name],
    doc_md=__doc__,
)
def verify_tables() -> None:
    # The source first: what is in the lake by then must have been in the source before.
    checksum_source() >> airflow_tasks.spark_job("verify_tables", "--tables", "{{ ti.xcom_pull(task_ids='checksum_source') | join(',') }}")


verify_tables()
