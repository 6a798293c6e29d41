"""MySQL into Apache Hudi: a resumable full load, then every change, exactly once."""
