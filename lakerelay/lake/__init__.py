"""What runs in a Spark driver: DataFrame in, DataFrame out. Never imports airflow."""
