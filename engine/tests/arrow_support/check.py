"""Reads files that heapscan wrote with pyarrow and compares each value with the line that the server's COPY printed.

The argument is a list: format, file and oracle on each line, tabs between. Prints how many values were compared, and how
many lie outside of what Python's dates hold.
"""

import datetime
import decimal
import math
import sys

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

decimal.getcontext().prec = 200
UTC = datetime.timezone.utc
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def unescape(field):
    if field == b"\\N":
        return None
    out, i, text = [], 0, field.decode("utf-8", "surrogateescape")
    while i < len(text):
        if text[i] == "\\":
            i += 1
            out.append(ESCAPES.get(text[i], text[i]))
        else:
            out.append(text[i])
        i += 1
    return "".join(out)


class Outside(Exception):
    """Python has no such date."""


def parse(text, kind):
    """The oracle's text as the Python value that pyarrow gives for the type."""
    if text is None:
        return None
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return text == "t"
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_float32(kind):
        return pa.scalar(float(text), pa.float32()).as_py()
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return None if text in ("NaN", "Infinity", "-Infinity") else decimal.Decimal(text)
    if pa.types.is_fixed_size_binary(kind):
        return bytes.fromhex(text.replace("-", ""))
    if pa.types.is_binary(kind):
        assert text.startswith("\\x"), text
        return bytes.fromhex(text[2:])
    if pa.types.is_string(kind):
        return text
    if pa.types.is_time(kind):
        if text == "24:00:00":
            raise Outside
        return datetime.time.fromisoformat(text)
    if text.endswith("BC") or "infinity" in text or len(text.split("-")[0]) > 4:
        raise Outside
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        value = datetime.datetime.fromisoformat(text)
        return value.astimezone(UTC) if kind.tz else value
    raise AssertionError(f"no rule for {kind}")


def same(have, wanted):
    if isinstance(have, float) and isinstance(wanted, float):
        return have == wanted or math.isnan(have) and math.isnan(wanted)
    return have == wanted


def main():
    compared = outside = 0
    for entry in open(sys.argv[1]):
        form, file, oracle = entry.rstrip("\n").split("\t")
        if form == "arrow":
            with pa.OSFile(file) as source:
                table = pa.ipc.open_stream(source).read_all()
        else:
            table = pa.parquet.read_table(file)
        lines = open(oracle, "rb").read().split(b"\n")[:-1]
        assert table.num_rows == len(lines), f"{file}: {table.num_rows} rows of {len(lines)}"
        # But for times: 24:00:00, which PostgreSQL has, is the end of Arrow's range and not in it.
        for column in table.columns:
            column.validate(full=not pa.types.is_time(column.type))
        rows = [line.split(b"\t") for line in lines]
        for index, field in enumerate(table.schema):
            kind, column = field.type, table.column(index)
            assert b"postgresql:type" in field.metadata, f"{file} {field.name}: no metadata"
            old_char = field.metadata[b"postgresql:type"] == b"char"
            for row, fields in enumerate(rows):
                wanted = unescape(fields[index])
                try:
                    wanted = parse(wanted, kind)
                except Outside:
                    outside += 1
                    continue
                have = column[row].as_py()
                if old_char and have != wanted and have and have.startswith("\\"):
                    continue
                assert same(have, wanted), f"{file} {field.name} row {row}: {have!r} is not {wanted!r}"
                compared += 1
    print(compared, outside)


main()
