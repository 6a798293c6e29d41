"""The columns that lakerelay adds to a table in the lake; a source table may not have a column of such a name."""

SEQ = "_seq"  # BIGINT: the binlog position as one number; Hudi's ordering field
PARTITION = "_partition"  # STRING: the value of the table's partition expression
# STRING: the key as a JSON array of texts, without a colon, unless all its columns are numbers. Hudi takes an empty text and a NULL, which a zero date is, for
# no key; it makes one key of ("a,k2:b", "c") and ("a", "b,k2:c"), and other keys of bytes in a bulk insert than in an upsert.
KEY = "_key"
DELETED = "_hoodie_is_deleted"  # BOOLEAN: Hudi's own name for a row to be removed

SOFT_DELETED = "_deleted"  # BOOLEAN: with soft_delete, whether the row is deleted in MySQL

SCHEMA, TABLE = "_schema", "_table"  # STRING: with `into`, where a row comes from

# Of tables of kind append, in which a row is a change.
OP = "_op"  # STRING: r read by a full load, c inserted, u updated, d deleted, t the table truncated
BEFORE = "_before"  # STRING: of an update the row before it, as JSON
COMMITTED_AT = "_committed_at"  # TIMESTAMP: of the event in the binlog; for rows of a full load the time at which they were read
CHANGE = "_change"  # STRING: names the change, and is the key

HISTORY = (OP, BEFORE, COMMITTED_AT, CHANGE)
ADDED = (SEQ, PARTITION, KEY, DELETED, SOFT_DELETED, *HISTORY)  # beside the columns of a source row
RESERVED = (*ADDED, SCHEMA, TABLE)
