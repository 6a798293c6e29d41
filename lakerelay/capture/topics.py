"""Kafka topics of a pipeline: their names, in one place, and their making, ends and removal."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from lakerelay.config import Settings
from lakerelay.errors import ProgressError

LARGEST = 64 << 20  # bytes of one record: a value of 16 MB twice, before and after an update, as base64; the same as in connect/*.json
COMPACTED = {"cleanup.policy": "compact"}
SEVEN_DAYS = {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * 3600 * 1000), "max.message.bytes": str(LARGEST)}
UNTIL_DELETED = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": str(LARGEST)}

_SECONDS = 20.0


def progress(settings: Settings) -> str:
    return f"{settings.name}.progress"


def commits(settings: Settings) -> str:
    return f"{settings.name}.commits"


def capture_prefix(settings: Settings) -> str:
    """The capture connector's topic.prefix; also the name of the topic with its schema changes."""
    return settings.name


def relay_prefix(settings: Settings, relay: str, attempt: int) -> str:
    """A relay attempt's topic.prefix; also the name of the topic with its schema changes."""
    return f"{settings.name}.relay.{relay}a{attempt}"


def data(prefix: str, table: str) -> str:
    """The topic with the rows or changes of `table`, named as Debezium names it: what Kafka does not allow becomes _."""
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "._-") else "_" for sign in f"{prefix}.{table}")


def notifications(prefix: str) -> str:
    return f"{prefix}.notifications"


def heartbeat(prefix: str) -> str:
    """Debezium writes to it while it hears from MySQL, changes or none: with the settings in connect/capture.json every 15 s."""
    return f"__debezium-heartbeat.{prefix}"


def history(prefix: str) -> str:
    return f"{prefix}.history"


def create(settings: Settings, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Create the topics (name → config) that are not there yet, one partition each."""
    admin = _admin(settings)
    try:
        present = admin.list_topics(timeout=_SECONDS).topics
        new = [
            NewTopic(name, num_partitions=1, replication_factor=settings.kafka.replication_factor, config=dict(config))
            for name, config in configs.items()
            if name not in present
        ]
        for future in (admin.create_topics(new, operation_timeout=_SECONDS) if new else {}).values():
            _ignore(future, KafkaError.TOPIC_ALREADY_EXISTS)
    except KafkaException as error:
        raise _error(settings, "Kafka topics cannot be created.", error) from error


def delete(settings: Settings, names: Iterable[str]) -> None:
    """Delete the topics; those that are not there are left out."""
    if not (wanted := sorted(set(names))):
        return
    admin = _admin(settings)  # named: an admin client that is dropped takes its requests with it
    try:
        for future in admin.delete_topics(wanted, operation_timeout=_SECONDS).values():
            _ignore(future, KafkaError.UNKNOWN_TOPIC_OR_PART)
    except KafkaException as error:
        raise _error(settings, "Kafka topics cannot be deleted.", error) from error


def present(settings: Settings, prefix: str) -> list[str]:
    """Topics whose name is `prefix` or starts with `prefix.`."""
    try:
        names = _admin(settings).list_topics(timeout=_SECONDS).topics
    except KafkaException as error:
        raise _error(settings, "Kafka cannot be reached.", error) from error
    return sorted(name for name in names if name == prefix or name.startswith(f"{prefix}."))


def end_offsets(settings: Settings, names: Iterable[str]) -> dict[str, int]:
    """The next offset of each topic's only partition. Offsets have gaps (transaction markers): a measure of progress, not a count."""
    return {name: end for name, (_, end) in bounds(settings, names).items()}


def bounds(settings: Settings, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The first offset that each topic still holds, and the next that it will give."""
    consumer = Consumer({"bootstrap.servers": settings.kafka.bootstrap_servers, "group.id": progress(settings), "enable.auto.commit": False, "log_level": 3})
    asking = Retrying(retry=retry_if_exception(_has_no_leader_yet), stop=stop_after_delay(_SECONDS), wait=wait_fixed(0.2), reraise=True)
    try:
        return {name: asking(consumer.get_watermark_offsets, TopicPartition(name, 0), timeout=_SECONDS) for name in names}
    except KafkaException as error:
        raise _error(settings, "Kafka's offsets cannot be read.", error) from error
    finally:
        consumer.close()


def described(settings: Settings, names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Topic → the id that Kafka gave it when it was made, and its number of partitions; without topics that are not there."""
    if not (wanted := sorted(set(names))):
        return {}
    admin, found = _admin(settings), {}
    for name, future in admin.describe_topics(TopicCollection(wanted), request_timeout=_SECONDS).items():
        try:
            topic = future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _error(settings, "Kafka's topics cannot be read.", error) from error
        else:
            found[name] = (str(topic.topic_id), len(topic.partitions))
    return found


def _admin(settings: Settings) -> AdminClient:
    return AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers, "log_level": 3})


def _has_no_leader_yet(error: BaseException) -> bool:
    """A topic that was made a moment ago."""
    codes = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION)
    return isinstance(error, KafkaException) and error.args[0].code() in codes


def _ignore(future: Future[None], code: int) -> None:
    try:
        future.result()
    except KafkaException as error:
        if error.args[0].code() != code:
            raise


def _error(settings: Settings, what: str, error: KafkaException) -> ProgressError:
    return ProgressError(what, todo="See that Kafka runs, then run the task again.", servers=settings.kafka.bootstrap_servers, why=error.args[0].str())
