"""Every error that lakerelay raises on purpose.

    LakerelayError
    ├── SettingsError        pipeline.toml, or a parameter of a DAG, cannot be used
    ├── StackError           the embedded stack cannot be started or stopped
    ├── PreflightError       the source, Kafka or Connect is not fit for a pipeline
    ├── ConnectError         Kafka Connect refused a request or a connector's task failed   (retryable)
    ├── SourceError          MySQL cannot be reached or lost what is needed
    ├── ProgressError        the progress topic cannot be read or written                  (retryable)
    ├── RelayError           a relay did not deliver what it scanned                        (retryable)
    ├── DecodeError          an event does not fit the table's schema
    │   └── SchemaChangeError    a table was altered in a way that its lake table cannot follow
    ├── LakeError            a Hudi table is not in the state that it must be in
    │   └── CommitConflictError  another program has written to it meanwhile             (retryable)
    ├── WriterFencedError    a newer driver of the same pipeline has taken over
    └── VerifyError          lake and source differ

A message says what happened, whether data are safe, and what to do, with the facts named:

>>> print(SourceError("Binlog position is no longer on the server.", safe="Nothing was written.",
...                   todo="Run full_load for these tables.", position="binlog.000007:154"))
Binlog position is no longer on the server. (position='binlog.000007:154') Nothing was written. Run full_load for these tables.
"""


class LakerelayError(Exception):
    """`retryable` says whether the same call can succeed later with nothing changed by a person."""

    retryable = False

    def __init__(self, what: str, *, safe: str = "Nothing was written.", todo: str, **facts: object) -> None:
        self.what, self.safe, self.todo, self.facts = what, safe, todo, facts
        named = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        super().__init__(" ".join(part for part in (what, f"({named})" if named else "", safe, todo) if part))


class SettingsError(LakerelayError):
    pass


class StackError(LakerelayError):
    pass


class PreflightError(LakerelayError):
    pass


class ConnectError(LakerelayError):
    retryable = True


class SourceError(LakerelayError):
    pass


class ProgressError(LakerelayError):
    retryable = True


class RelayError(LakerelayError):
    retryable = True


class DecodeError(LakerelayError):
    pass


class SchemaChangeError(DecodeError):
    pass


class LakeError(LakerelayError):
    pass


class CommitConflictError(LakeError):
    retryable = True


class WriterFencedError(LakerelayError):
    pass


class VerifyError(LakerelayError):
    pass
