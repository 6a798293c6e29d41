"""### Full load: bring whole tables into the lake

Reads the chosen MySQL tables and writes each as one Hudi commit. Changes made meanwhile are captured from before the first row is read, so that
`stream_changes` goes on from exactly there. Load as often as you like: a table that is loaded is left as it is, an unfinished load is continued.

**Parameters**

* `tables`: which tables; none chosen means all of `pipeline.toml`.
* `replace`: load tables again that are loaded already. Readers see the old rows until the new ones are whole.

**Tasks**

1. `preflight`: is the source, Kafka and Kafka Connect fit for this; each failure comes with the statement that mends it.
2. `fix_position`: the capture connector runs, and where it began is recorded.
3. `plan_relays`: what is left to scan, as relays of some minutes each. The plan is in its log.
4. `scan_relay`, one for each relay: MySQL → Kafka. `load_tables`, beside them: Kafka → Hudi, each table as soon as its relays are scanned.
5. `hand_over`: every chosen table is loaded; the verdict is in its log. One asset event for each table.

**When it fails** read the last lines of the red task's log: what happened, whether data are safe, what to do. Then clear that task, or trigger again:
scanned relays and loaded tables are not done again. When `scan_relay` failed for good, `load_tables` fails too, naming the relays that are missing: clear both.
"""

from airflow.sdk import AssetAlias, dag, get_current_context, task

from lakerelay import airflow_tasks, config

settings = config.load()
LAKE_TABLES = AssetAlias(f"{settings.name}_lake_tables")


@task
def preflight() -> None:
    from lakerelay.capture.preflight import preflight

    preflight(settings)


@task
def fix_position() -> str:
    from lakerelay.capture.position import fix_position

    return str(fix_position(settings, begin_anew=get_current_context()["params"]["replace"]))


@task
def plan_relays() -> list[dict[str, str]]:
    """One entry for each relay that is left: its id and a name that a person can read."""
    from lakerelay.capture import binlog, source
    from lakerelay.capture.handover import relay_name
    from lakerelay.capture.plan import plan_relays
    from lakerelay.capture.progress import Progress

    context = get_current_context()
    with binlog.connect(settings) as mysql:
        chosen = settings.choose(context["params"]["tables"], [table.name for table in source.tables(mysql, settings)])
    relays = plan_relays(settings, chosen, run=context["run_id"], replace=context["params"]["replace"])
    context["ti"].xcom_push(key="tables", value=chosen)
    with Progress(settings) as progress:
        state = progress.read()
    return [{"id": relay, "name": relay_name(state, relay)} for relay in relays]


@task(map_index_template="{{ task.op_kwargs['relay']['name'] }}", max_active_tis_per_dagrun=settings.relay.lanes)
def scan_relay(relay: dict[str, str]) -> None:
    from lakerelay.capture.relay import scan_relay

    scan_relay(settings, relay["id"])


# None failed, rather than all succeeded: with nothing left to scan the mapped task is skipped, and the tables are loaded all the same.
@task(trigger_rule="none_failed", outlets=[LAKE_TABLES])
def hand_over() -> None:
    from lakerelay.capture.handover import hand_over

    context = get_current_context()
    for table, facts in hand_over(settings, context["ti"].xcom_pull(task_ids="plan_relays", key="tables")).items():
        context["outlet_events"][LAKE_TABLES].add(airflow_tasks.lake_table(settings, table), extra=facts)


@dag(
    schedule=None,
    params={"tables": airflow_tasks.tables_param(settings), "replace": airflow_tasks.replace_param()},
    default_args=airflow_tasks.DEFAULT_ARGS,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["lakerelay", settings.name],
    doc_md=__doc__,
)
def full_load() -> None:
    position, relays = fix_position(), plan_relays()
    load_tables = airflow_tasks.spark_job("load_tables", "--tables", "{{ ti.xcom_pull(task_ids='plan_relays', key='tables') | join(',') }}")
    # The position before the plan, and so before any scan: a change between the two would be in neither.
    preflight() >> position >> relays
    # The load follows the progress topic beside the scans, so it waits for the plan alone.
    relays >> load_tables
    # A table is handed over when it stands in the lake, not when it is scanned.
    [scan_relay.expand(relay=relays), load_tables] >> hand_over()


full_load()
