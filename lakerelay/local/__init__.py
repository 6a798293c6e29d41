"""The embedded stack: MySQL, Kafka, Kafka Connect and Airflow on one machine, in one folder, on loopback."""

from pathlib import Path

PROJECT = Path(__file__).parents[2]  # connect/, dags/ and spark_jobs/ stand here
LOOPBACK = "127.0.0.1"
