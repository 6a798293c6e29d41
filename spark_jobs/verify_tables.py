"""spark-submit verify_tables.py --tables a.b,c.d: compare the lake with the recorded checksums of the source (lakerelay.lake.verify)."""

from lakerelay import config
from lakerelay.lake import job, session, verify


def main() -> None:
    settings = config.load()
    tables = job.tables(__doc__)
    verify.verify_tables(session.start(f"{settings.name} verify_tables"), settings, tables)


if __name__ == "__main__":
    job.run(main)
