"""spark-submit load_tables.py --tables a.b,c.d: stage relays as they are scanned and load the tables (lakerelay.lake.load)."""

from lakerelay import config
from lakerelay.capture.progress import Progress
from lakerelay.lake import job, load, session


def main() -> None:
    settings = config.load()
    tables = job.tables(__doc__)
    with Progress(settings) as progress:
        state = progress.read()
    if load.unfinished(state, tables):
        load.load_tables(session.start(f"{settings.name} load_tables"), settings, tables)
    else:
        print("nothing to load: every table is loaded already", flush=True)


if __name__ == "__main__":
    job.run(main)
