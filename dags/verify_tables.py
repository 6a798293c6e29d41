"""### Verify tables: is the lake equal to the source

Compares each chosen table in MySQL and in the lake, row by row through checksums, each engine its own side. The source may be written to, and streamed,
meanwhile: a row that differs is looked at again until it is equal, or differs though nobody has changed it.

**Parameters**

* `tables`: which tables; none chosen means all loaded ones.

**Tasks**

1. `choose_tables`: which tables that are.
2. `verify_tables`: the comparison. At the end of its log a line for each table, `equal`, `different` or `undecided`, and before it the keys that differ.
3. `verdict`, one for each table: fails unless it is equal; else it is an asset event, on which other DAGs can be scheduled.

The source is read range by range, with a pause after each, in a transaction that locks nothing; `[verify]` in pipeline.toml sets range, pause and time limit.

**When it fails** and a table is `different`: keep the log, a difference is a defect; trigger `full_load` for that table with `replace`, then this again. When
a table is `undecided`, its line says why: mostly `stream_changes` does not run, or the table was stopped.
"""

from airflow.sdk import AssetAlias, dag, get_current_context, task

from lakerelay import airflow_tasks, config

settings = config.load()
VERIFIED = AssetAlias(f"{settings.name}_verified_tables")


@task
def choose_tables() -> list[str]:
    from lakerelay.capture.handover import comparable_tables

    return settings.choose(get_current_context()["params"]["tables"], comparable_tables(settings))


# Whether or not the comparison failed: the tables that are equal are so all the same.
@task(map_index_template="{{ task.op_kwargs['table'] }}", trigger_rule="all_done", outlets=[VERIFIED])
def verdict(table: str) -> None:
    from lakerelay.capture.handover import require_equal

    context = get_current_context()
    facts = require_equal(settings, table, since=context["dag_run"].start_date.timestamp())
    context["outlet_events"][VERIFIED].add(airflow_tasks.verified_table(settings, table), extra=facts)


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
    tables = choose_tables()
    names = "{{ ti.xcom_pull(task_ids='choose_tables') | join(',') }}"
    compared = airflow_tasks.spark_job("verify_tables", "--tables", names, reads_source=True)
    tables >> compared >> verdict.expand(table=tables)


verify_tables()
