"""One text for one JSON document, however it came.

MySQL writes a JSON column with blanks and numbers as C prints them; Debezium, reading the binlog, without blanks and with doubles expanded to all
their digits. The text here has no blanks, and numbers without an exponent, with the fewest digits that give the same double.
"""

import re
import sys
from decimal import Decimal

from pyspark import cloudpickle
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# A number with an exponent, or with more digits than a double needs; a control character in capital letters.
_UNUSUAL = r"[0-9][eE][-+0-9]|[0-9.]{19,}|\\u00[01][A-F]"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?')
_ESCAPE = re.compile(r"\\(?:u[0-9A-F]{4}|.)")
_DOUBLE_DIGITS = 17
_INTEGERS = 2**64


def canonical(column: Column) -> Column:
    compact = F.regexp_replace(column, rf"({_STRING})|\s+", "$1")
    # Nearly all documents end here; the others are worth a way through Python.
    return F.when(compact.rlike(_UNUSUAL), _plain(F.when(compact.rlike(_UNUSUAL), compact))).otherwise(compact)


def plain(text: str | None) -> str | None:
    r"""
    >>> plain('[1e100,1.5e-5,123456789.099999994039535522460937500,18446744073709551615,"1e5"]').replace("0" * 100, "…")
    '[1…,0.000015,123456789.1,18446744073709551615,"1e5"]'
    >>> plain("[12345678901234567890.123456789,1e19]")
    '[12345678901234567890.123456789,10000000000000000000]'
    >>> print(plain(r'["\u001F","\\u001F"]'))
    ["\u001f","\\u001F"]
    """
    return text and _TOKEN.sub(lambda found: _text(found[0]) if found[0][0] == '"' else _number(found[0]), text)


def _text(text: str) -> str:
    return _ESCAPE.sub(lambda escape: escape[0].lower() if escape[0][1] == "u" else escape[0], text)


def _number(number: str) -> str:
    exact = Decimal(number)
    double = float(number)
    if "e" in number.lower():
        # A double: up to 2^64 all its digits, as Debezium writes it, for there it cannot be told from an integer.
        whole = double.is_integer() and abs(double) < _INTEGERS
        return str(int(double)) if whole else _shortest(double)
    if len(exact.as_tuple().digits) <= _DOUBLE_DIGITS or exact != Decimal(double) or (exact == int(exact) and abs(exact) < _INTEGERS):
        return number  # as it is: an integer, a DECIMAL, or a double with few digits
    return _shortest(double)


def _shortest(double: float) -> str:
    return f"{Decimal(repr(double)):f}"


# By value, so that an executor needs no lakerelay.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
_plain = F.udf(plain, T.StringType())
