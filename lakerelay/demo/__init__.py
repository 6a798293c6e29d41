"""`lakerelay demo`: TPC-H under write load, into the lake, through Airflow, and the proof that lake and source are equal."""
