"""Measure the full load: TPC-H lineitem, partitioned by month of l_shipdate, MySQL → Hudi, by the functions that the DAG full_load calls.

    python bench/full_load.py --scale 1 --lanes 2 --rows 1500000

Everything runs on this machine. Prints a table, and as its last line the same as one JSON object.
The time is from the first relay's start to the load's commit.
"""

import argparse
from functools import partial
from pathlib import Path

import stack  # beside this file

from lakerelay.capture.progress import Progress, State
from lakerelay.config import Settings
from lakerelay.local import tpch

TABLE = "tpch.lineitem"


def main() -> None:
    arguments = _arguments()
    table = {"name": TABLE, "partition": "date_format(l_shipdate, 'yyyy-MM')", "type": arguments.type}
    with stack.pipeline("full_load", [table], {"lanes": arguments.lanes, "rows": arguments.rows}) as settings:
        print(tpch.create_tables(partial(stack.connection, settings), arguments.scale, ["lineitem"])[0], flush=True)
        with stack.Memory() as memory:
            printed = stack.full_load(settings, [TABLE])
        with Progress(settings) as progress:
            figures = _figures(settings, progress.read(), printed)
    stack.report(figures | {"peak_memory_gib": round(memory.peak / 2**30, 1), "machine": stack.machine()})


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
