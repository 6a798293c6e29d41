"""What spark-submit is given on this machine: <folder>/spark is its SPARK_CONF_DIR."""

from pathlib import Path

from lakerelay.config import Local
from lakerelay.local import LOOPBACK, jars, java

DRIVER_MEMORY = "3g"

# Their warnings say nothing that a person could mend; a task's log is for what can be.
_CHATTY = (
    "org.apache.hadoop.util.NativeCodeLoader",
    "org.apache.hudi.config.HoodieWriteConfig",
    "org.apache.kafka.clients.admin.AdminClientConfig",
    "org.apache.spark.SparkConf",
    "org.apache.spark.sql.catalyst.util.SparkStringUtils",
)


def write(local: Local) -> Path:
    """Write spark-defaults.conf and log4j2.properties; returns their folder."""
    folder = local.folder / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "spark.jars": ",".join(str(jar) for jar in jars.spark()),
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -XX:+ExitOnOutOfMemoryError",
        "spark.local.dir": folder / "tmp",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.ui.showConsoleProgress": "false",
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in values.items()))
    java.write_logging(folder / "log4j2.properties", "WARN", dict.fromkeys(_CHATTY, "ERROR"))
    return folder
