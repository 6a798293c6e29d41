"""Measure the full load: TPC-H lineitem, partitioned by month of l_shipdate, MySQL → Hudi, by the functions that the DAG full_load calls.

    python bench/full_load.py --scale 1 --lanes 2 --rows 1500000

Everything runs on this machine. Prints a table, and as its last line the same as one JSON object.
The time is from the first relay's start to the load's commit.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import stack  # beside this file

from lakerelay.capture.plan import plan_relays
from lakerelay.capture.position import fix_position
from lakerelay.capture.preflight import preflight
from lakerelay.capture.progress import Progress, State
from lakerelay.capture.relay import scan_relay
from lakerelay.config import Settings
from lakerelay.local import airflow, mysql, tpch

TABLE = "tpch.lineitem"


def main() -> None:
    arguments = _arguments()
    table = {"name": TABLE, "partition": "date_format(l_shipdate, 'yyyy-MM')", "type": arguments.type}
    settings = stack.up("bench_full_load", [table], {"lanes": arguments.lanes, "rows": arguments.rows})
    assert settings.local is not None
    print(tpch.create_tables(partial(mysql.connect, settings.local), arguments.scale, ["lineitem"])[0], flush=True)
    preflight(settings)
    fix_position(settings)
    relays = plan_relays(settings, [TABLE], run=f"bench {time.time()}", replace=True)
    with stack.Memory() as memory:
        printed = _load(settings, relays)
    with Progress(settings) as progress:
        figures = _figures(settings, progress.read(), printed) | {"peak_memory_gib": round(memory.peak / 2**30, 1), "machine": stack.machine()}
    for name, value in figures.items():
        print(f"{name:<22} {value:,}" if isinstance(value, int | float) else f"{name:<22} {value}")
    print(json.dumps(figures))


def _load(settings: Settings, relays: list[str]) -> str:
    """What the DAG does after its plan: the scans in `lanes` lanes, beside them one Spark application. Returns what that printed."""
    job = ["spark-submit", "--master", "local[*]", str(stack.PROJECT / "spark_jobs" / "load_tables.py"), "--tables", TABLE]
    printed = []
    with subprocess.Popen(job, env=airflow.environment(settings), stdout=subprocess.PIPE, text=True) as spark, ThreadPoolExecutor(settings.relay.lanes) as pool:
        scans = [pool.submit(scan_relay, settings, relay) for relay in relays]
        for line in spark.stdout or ():
            print(line, end="", flush=True)
            printed.append(line)
        for scan in scans:
            scan.result()
    if spark.returncode:
        sys.exit("load_tables failed")
    return "".join(printed)


def _figures(settings: Settings, state: State, printed: str) -> dict[str, object]:
    record = state.tables[TABLE]
    relays = [state.relays[relay] for relay in record.relays]
    began, scanned = min(relay.started_at for relay in relays), max(relay.scanned_at for relay in relays)
    load = next(line for line in printed.splitlines() if line.startswith("table loaded"))
    files = [file.stat().st_size for file in Path(settings.lake.path, "tpch", "lineitem").rglob("*.parquet")]
    return {
        "rows": record.rows,
        "relays": len(relays),
        "lanes": settings.relay.lanes,
        "seconds": round(record.loaded_at - began, 1),
        "rows_per_minute": round(record.rows / (record.loaded_at - began) * 60),
        "scan_seconds": round(scanned - began, 1),
        "scan_rows_per_second": round(record.rows / (scanned - began)),
        "load_seconds": float(load.split("seconds=")[1].split()[0]),
        "load_rows_per_second": int(load.split("rows/s=")[1].split()[0]),
        "files": len(files),
        "file_bytes": sum(files),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1_500_000, help="of a relay")
    parser.add_argument("--type", choices=["cow", "mor"], default="mor")
    return parser.parse_args()


if __name__ == "__main__":
    main()
