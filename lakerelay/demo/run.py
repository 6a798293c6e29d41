"""The demo's steps, in order. Each can be done again: after an interrupt the demo goes on with what is there."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from lakerelay.capture import binlog, bodies, topics
from lakerelay.capture.connector import Connector
from lakerelay.capture.progress import Progress, State
from lakerelay.config import Local, Settings
from lakerelay.demo import q1
from lakerelay.demo.view import View
from lakerelay.errors import ProgressError, SettingsError, StackError, VerifyError
from lakerelay.local import airflow, mysql, stack, tpch
from lakerelay.local.airflow_api import AirflowApi
from lakerelay.local.tpch_writer import Writer

DAGS = ("full_load", "stream_changes", "verify_tables")
_PATIENCE = 300.0  # seconds without the end of a step that the demo waits for
_LOG_LINES = 25


@dataclass(frozen=True)
class Options:
    """`scale`: 1.0 is 6 million lineitems; `seconds`: how long to stream after the full load; `rate`: rows that the writer changes in a second."""

    scale: float = 0.1
    seconds: float = 30.0
    rate: float = 300.0


@dataclass(frozen=True)
class Demo:
    settings: Settings
    options: Options
    view: View
    api: AirflowApi
    progress: Progress
    writer: Writer

    @property
    def local(self) -> Local:
        return _local(self.settings)

    def full_load(self) -> None:
        """Through Airflow; the stream is unpaused as soon as one table is loaded, and takes up the others while it runs."""
        run, unpaused = self._run("full_load"), False
        while (ended := self.api.state("full_load", run)) not in ("success", "failed"):
            state = self._show("full load")
            if not unpaused and any(table.state == "loaded" for table in state.tables.values()):
                self.api.unpause("stream_changes")
                unpaused = True
            time.sleep(1)
        if ended == "failed":
            self._fail("full_load", run)
        self.api.unpause("stream_changes")
        self._show("full load done")

    def stream(self) -> None:
        """Under write load for a while, then until nothing is left to apply."""
        self._until(lambda: all(table in self._streamed() for table in tpch.TABLES), "the stream to take up every table")
        until = time.monotonic() + self.options.seconds
        while time.monotonic() < until:
            self._show("streaming under write load")
            time.sleep(1)
        self.writer.stop()
        with mysql.connect(self.local) as connection:
            end = binlog.position(connection)
        self.view.say(f"writer stopped: {self.writer.rows:,} rows changed, binlog at {end}")
        capture = Connector(self.settings, bodies.capture_name(self.settings))
        self._until(lambda: (at := capture.position()) is not None and at >= end, "the capture of every change")
        names = {table: topics.data(topics.capture_prefix(self.settings), table) for table in tpch.TABLES}
        ends = topics.end_offsets(self.settings, names.values())
        self._until(lambda: all(self._streamed()[table]["offset"] >= ends[topic] for table, topic in names.items()), "the stream to catch up")

    def verify(self) -> None:
        """Through Airflow. Raises VerifyError when a table differs."""
        run = self._run("verify_tables")
        while (ended := self.api.state("verify_tables", run)) not in ("success", "failed"):
            self._show("verifying every column of every table")
            time.sleep(1)
        if ended == "failed":
            self._fail("verify_tables", run)
        log = self.api.log("verify_tables", run, "verify_tables").splitlines()
        for line in [line for line in log if not line.startswith("::")][-len(tpch.TABLES) :]:  # Airflow's own groups follow the verdict
            self.view.say(line)

    def _run(self, dag: str) -> str:
        """A run that an interrupted demo left under way is followed, not doubled."""
        active = [run["dag_run_id"] for run in self.api.runs(dag) if run["state"] in ("queued", "running")]
        return str(active[-1]) if active else self.api.trigger(dag)

    def _state(self) -> State:
        """Asked for again when Kafka does not answer: two cores may have too much to do for the moment."""
        patient = Retrying(retry=retry_if_exception_type(ProgressError), stop=stop_after_delay(_PATIENCE), reraise=True)
        return patient(self.progress.read)

    def _show(self, doing: str) -> State:
        state = self._state()
        self.view.show(state, self.writer.rows, doing)
        return state

    def _streamed(self) -> dict[str, dict[str, Any]]:
        stream = self._state().stream
        return stream.tables if stream else {}

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not done():
            self._show(f"waiting for {what}")
            newest = self.api.runs("stream_changes")[:3]  # one that failed is started again, three times over
            if [run["state"] for run in newest] == ["failed"] * 3:
                self._fail("stream_changes", newest[0]["dag_run_id"])
            if time.monotonic() > deadline:
                raise StackError(f"The demo waited for {what} in vain.", safe="The stack keeps running.", todo="See stream_changes' log.", seconds=_PATIENCE)
            time.sleep(1)

    def _fail(self, dag: str, run: str) -> None:
        failed = next((task for task in self.api.tasks(dag, run) if task["state"] == "failed"), None)
        printed = ""
        if failed:
            log = self.api.log(dag, run, failed["task_id"], failed["try_number"], failed["map_index"])
            printed = "\n".join(log.splitlines()[-_LOG_LINES:])
        kind = VerifyError if dag == "verify_tables" else StackError
        raise kind(
            f"{dag} failed:\n{printed}\n",
            safe="What was done stays done.",
            todo="See Airflow's UI, or run the demo again.",
            task=failed and failed["task_id"],
            ui=airflow.url(self.local),
        )


def run(settings: Settings, options: Options, console: Console) -> bool:
    """All of it; whether lake and source give the same answer to Q1. Raises a LakerelayError when a step fails or a table differs."""
    local = _local(settings)
    if missing := [table for table in tpch.TABLES if settings.table(table) is None]:
        raise SettingsError("The demo needs TPC-H's tables in the settings.", todo="Use the pipeline.toml that came with the project.", missing=missing)
    stack.up(settings, say=partial(console.print, markup=False, soft_wrap=True))
    connect = partial(mysql.connect, local)
    view = View(console, tpch.TABLES)
    view.say(f"creating TPC-H at scale {options.scale:g} in MySQL")
    created = tpch.create_tables(connect, options.scale)
    view.say(f"source ready: {sum(table.rows for table in created):,} rows in {len(created)} tables")
    writer = Writer(connect, options.scale, options.rate)
    with AirflowApi(airflow.url(local), airflow.users_file(local)) as api, Progress(settings) as progress, view:
        for dag in DAGS:
            api.wait_for_dag(dag)
        demo = Demo(settings, options, view, api, progress, writer)
        with writer:
            demo.full_load()
            demo.stream()
        view.say("lake has caught up, verifying")
        demo.verify()
    return _query(settings, local, view, console)


def _query(settings: Settings, local: Local, view: View, console: Console) -> bool:
    view.say("running TPC-H Q1 on the lake and on MySQL")
    with mysql.connect(local) as connection:
        source = q1.on_mysql(connection)
    lake = q1.on_lake(f"{settings.lake.path}/tpch/lineitem", airflow.environment(settings))
    console.print(q1.side_by_side(lake, source))
    same = q1.agree(lake, source)
    view.say("every table is equal, Q1 agrees" if same else "Q1 differs")
    _where(settings, local, console)
    return same


def _where(settings: Settings, local: Local, console: Console) -> None:
    places = {
        "Airflow": f"{airflow.url(local)}   user and password: {airflow.users_file(local)}",
        "lake": settings.lake.path,
        "logs": f"{local.folder / 'logs'}, of tasks: {local.folder / 'airflow' / 'logs'}",
        "stop": "lakerelay down   (--erase removes the data too)",
    }
    for name, place in places.items():
        console.print(f"{name:<8} {place}", markup=False, soft_wrap=True)


def _local(settings: Settings) -> Local:
    if settings.local is None:
        raise SettingsError("The demo needs the embedded stack.", todo="Use settings with a [local] section.")
    return settings.local
