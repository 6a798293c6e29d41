"""From MySQL to Kafka: runs in an Airflow worker, never imports pyspark."""
