"""What spark-submit is given on this machine: <folder>/spark is its SPARK_CONF_DIR."""

from pathlib import Path

from lakerelay.config import Local
from lakerelay.local import LOOPBACK, jars, java

DRIVER_MEMORY = "3g"
_NO_ATTACH = "-Djol.skipDynamicAttach=true -Djol.skipHotspotSAAttach=true"

# Their warnings say nothing that a person could mend; a task's log is for what can be.
_CHATTY = (
    "org.apache.hadoop.util.NativeCodeLoader",
    "org.apache.hudi.HoodieFileIndex",
    "org.apache.hudi.config.HoodieWriteConfig",
    "org.apache.kafka.clients.admin.AdminClientConfig",
    "org.apache.spark.SparkConf",
    "org.apache.spark.scheduler.DAGScheduler",
    "org.apache.spark.sql.catalyst.util.SparkStringUtils",
    "org.apache.spark.sql.execution.streaming.ProcessingTimeExecutor",
    "org.apache.spark.sql.execution.streaming.ResolveWriteToStream",
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
        # On two cores G1's threads spin against the work itself. Hudi estimates objects' sizes by attaching to its own process, which this JDK cannot do.
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -XX:+ExitOnOutOfMemoryError -XX:+UseParallelGC {_NO_ATTACH}",
        "spark.local.dir": folder / "tmp",
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in values.items()))
    java.write_logging(folder / "log4j2.properties", "WARN", dict.fromkeys(_CHATTY, "ERROR"))
    return folder
