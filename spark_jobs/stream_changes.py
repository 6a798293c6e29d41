"""spark-submit stream_changes.py: upsert the changes of every loaded table until it is stopped (lakerelay.lake.stream)."""

from lakerelay import config
from lakerelay.lake import job, session, stream


def main() -> None:
    settings = config.load()
    stream.stream_changes(session.start(f"{settings.name} stream_changes"), settings)


if __name__ == "__main__":
    job.run(main)
