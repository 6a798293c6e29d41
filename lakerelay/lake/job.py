"""What the programs in spark_jobs/ have in common: arguments, a log that a person reads, an exit status."""

import argparse
import logging
import sys
from collections.abc import Callable

from lakerelay.errors import LakerelayError


def tables(description: str | None) -> tuple[str, ...]:
    """`--tables a.b,c.d`; an empty text means none."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--tables", required=True, type=lambda text: tuple(filter(None, text.split(","))))
    return tuple(arguments.parse_args().tables)


def run(main: Callable[[], None]) -> None:
    """Run a job with its log on standard output, where Airflow reads it; a LakerelayError ends it with its message and status 1."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s", force=True)
    for chatty in ("py4j", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        main()
    except LakerelayError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(1)
