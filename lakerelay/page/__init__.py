"""The page "Lakerelay" in Airflow's navigation: how far each table is, what the stream does, relays as a time line."""
