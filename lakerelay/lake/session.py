"""The Spark session that every job runs in."""

from typing import Any

from pyspark.sql import SparkSession

# What the code relies on; memory, master and jars are the machine's business (spark-defaults.conf, the Airflow connection).
OPTIONS = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    "spark.sql.session.timeZone": "UTC",  # DATETIME has no zone: it is kept as if it were UTC
    # Days before 1582 are counted as MySQL counts them, not as in the Julian calendar of Spark 2.
    **{f"spark.sql.{form}RebaseModeIn{way}": "CORRECTED" for form in ("parquet.datetime", "parquet.int96", "avro.datetime") for way in ("Read", "Write")},
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.caseSensitive": "true",  # column names are taken from Debezium's JSON as they are
    "spark.sql.shuffle.partitions": "8",  # enough for a micro-batch; adaptive execution joins what is small
    "spark.scheduler.mode": "FAIR",  # tables are written side by side
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopTimeout": "120s",  # by default it waits for ever, also when its interrupt got lost (SPARK-57963)
    # A stream runs for months: what Spark remembers of past jobs, their plans above all, is for its UI alone.
    **dict.fromkeys(["spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions"], "100"),
}


def start(name: str, **options: str) -> SparkSession:
    """The session of this driver, quiet but for warnings."""
    builder = SparkSession.builder.appName(name)
    for option, value in (OPTIONS | options).items():
        builder = builder.config(option, value)
    return builder.getOrCreate()


def file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """A Hadoop Path, and the Hadoop FileSystem that it is on: Java objects."""
    jvm: Any = spark._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    return where, where.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
