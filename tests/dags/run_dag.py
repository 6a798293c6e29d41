"""Run a DAG by dag.test(), in a process and an AIRFLOW_HOME of its own: `python run_dag.py <dag> <conf as JSON> [tasks to take as done]`.

Prints JSON as its last line: the run's state, and each task's.
"""

import json
import sys
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag

DAGS = Path(__file__).resolve().parents[2] / "dags"


def main(dag_id: str, conf: str, done: str | None = None) -> None:
    dag = DagBag(DAGS / f"{dag_id}.py").dags[dag_id]
    run = dag.test(run_conf=json.loads(conf), mark_success_pattern=done)
    tasks = {f"{task.task_id}[{task.map_index}]" if task.map_index >= 0 else task.task_id: str(task.state) for task in run.get_task_instances()}
    print(json.dumps({"state": str(run.state), "tasks": tasks}))


if __name__ == "__main__":
    main(*sys.argv[1:])
