#!/usr/bin/env python3
"""Rows of a table of 20 mixed columns, to text, Arrow and Parquet: heapscan beside COPY and beside clients that fetch Arrow.

Makes a cluster with initdb, fills the table, measures COPY and the clients against the running server, stops it, and
measures heapscan on the files. CPU seconds are those of both sides: of the clients' process and of the server's.

    benches/columnar.py --pgbin /usr/lib/postgresql/15/bin --heapscan target/release/heapscan --rows 1000000

The clients (adbc-driver-postgresql, connectorx; both want pyarrow) are taken where this Python has them:
    python3 -m venv target/pyarrow-venv && target/pyarrow-venv/bin/pip install pyarrow adbc-driver-postgresql connectorx
As root, --user names who runs the server.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TABLE = """
CREATE TABLE mixed20 (
  id int8 NOT NULL, i4 int4, i2 int2, flag bool, f4 float4, f8 float8, price numeric(12,2), amount numeric(18,4),
  word text, sentence text, code varchar(32), fixed char(10), day date, at timestamp, atz timestamptz, u uuid,
  doc jsonb, raw bytea, note text, numbers int4[]);
INSERT INTO mixed20 SELECT i, hashint8(i), (hashint8(i) % 30000)::int2, i % 3 = 0, i / 7.0, sqrt(i),
  (i % 1000000) / 100.0, hashint8(i) / 1000.0, 'word' || i % 1000, repeat('lorem ipsum ', 1 + (i % 5)::int), md5(i::text),
  'c' || i % 1000, date '2000-01-01' + (i % 9000)::int, timestamp '2020-01-01' + i * interval '1 s',
  timestamptz '2020-01-01' + i * interval '1 s', md5(i::text)::uuid, jsonb_build_object('id', i, 'tag', 't' || i % 10),
  decode(md5(i::text), 'hex'), CASE WHEN i % 3 = 0 THEN NULL ELSE 'note ' || i END, ARRAY[i, i + 1, i + 2]::int4[]
  FROM generate_series(1, {rows}) i;
VACUUM (FREEZE, ANALYZE) mixed20;
"""


class Server:
    def __init__(self, args, folder):
        self.args, self.data, self.socket = args, os.path.join(folder, "data"), os.path.join(folder, "s")
        self.prefix = ["runuser", "-u", args.user, "--"] if os.getuid() == 0 else []
        os.makedirs(self.data, 0o700)
        os.makedirs(self.socket, 0o755)
        if self.prefix:
            for path in (self.data, self.socket):
                shutil.chown(path, args.user)
        self.run("initdb", "-D", self.data, "-U", "postgres", "--locale=C", "-E", "UTF8", "-A", "trust", "-k")
        self.start()

    def run(self, program, *args, **more):
        command = self.prefix + [os.path.join(self.args.pgbin, program), *args]
        return subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **more)

    def start(self):
        options = f"-c listen_addresses= -c unix_socket_directories={self.socket} -c autovacuum=off -c max_wal_size=4GB"
        options += " -c fsync=off -c shared_buffers=1GB -c max_parallel_workers_per_gather=0"
        self.run("pg_ctl", "-D", self.data, "-w", "-l", os.path.join(self.data, "log"), "-o", options, "start")
        with open(os.path.join(self.data, "postmaster.pid")) as file:
            self.pid = int(file.readline())

    def stop(self):
        self.run("pg_ctl", "-D", self.data, "-w", "-m", "fast", "stop")

    def psql(self, sql, **more):
        command = self.prefix + [self.args.psql, "-XqAt", "-h", self.socket, "-U", "postgres", "-d", "postgres", "-c", sql]
        return subprocess.run(command, check=True, cwd="/", **more)

    def cpu(self):
        """CPU seconds of the backends that ended."""
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def measure(name, rows, size, runs, action, server=None):
    walls, cpus = [], []
    for _ in range(runs):
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        before = sum(u.ru_utime + u.ru_stime for u in usage) + (server.cpu() if server else 0)
        began = time.monotonic()
        count = action()
        walls.append(time.monotonic() - began)
        time.sleep(0.3)  # until the backend was reaped
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        after = sum(u.ru_utime + u.ru_stime for u in usage) + (server.cpu() if server else 0)
        cpus.append(after - before)
        if count is not None and count != rows:
            raise SystemExit(f"{name}: {count} rows of {rows}")
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    result = {
        "what": name,
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "rows_per_s": round(rows / wall),
        "rows_per_cpu_s": round(rows / cpu),
        "mb_per_s": round(size / wall / 1e6, 1),
        "mb_per_cpu_s": round(size / cpu / 1e6, 1),
    }
    print(json.dumps(result), flush=True)
    return result


def clients(server, rows, size, runs):
    uri = f"postgresql:///postgres?host={server.socket}&user=postgres"
    query = "SELECT * FROM mixed20"

    def adbc():
        import adbc_driver_postgresql.dbapi as dbapi

        with dbapi.connect(uri) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return sum(batch.num_rows for batch in cursor.fetch_record_batch())

    def connectorx():
        import connectorx

        socket = server.socket.replace("/", "%2F")
        return connectorx.read_sql(f"postgresql://postgres@{socket}:5432/postgres", query, return_type="arrow").num_rows

    for name, action in (("adbc-driver-postgresql, Arrow", adbc), ("connectorx, Arrow", connectorx)):
        try:
            measure(name, rows, size, runs, action, server)
        except Exception as error:  # not installed, or a type that it does not know
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pgbin", default="/usr/lib/postgresql/15/bin")
    parser.add_argument("--psql", default=shutil.which("psql") or "psql")
    parser.add_argument("--heapscan", default="target/release/heapscan")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--user", default="postgres")
    parser.add_argument("--folder", help="where to make the cluster (removed afterwards)")
    args = parser.parse_args()
    args.heapscan = os.path.abspath(args.heapscan)
    folder = tempfile.mkdtemp(prefix="columnar", dir=args.folder)
    os.chmod(folder, 0o755)
    server = Server(args, folder)
    running = True
    try:
        server.psql(TABLE.format(rows=args.rows))
        size = int(server.psql("SELECT pg_relation_size('mixed20')", stdout=subprocess.PIPE).stdout)
        print(f"{args.rows} rows, {size / 1e6:.0f} MB of pages", file=sys.stderr)
        copy = lambda: server.psql("COPY mixed20 TO STDOUT", stdout=subprocess.DEVNULL) and None
        measure("PostgreSQL, COPY TO STDOUT, text", args.rows, size, args.runs, copy, server)
        measure(
            "PostgreSQL, COPY TO '/dev/null', text", args.rows, size, args.runs,
            lambda: server.psql("COPY mixed20 TO '/dev/null'") and None, server,
        )
        clients(server, args.rows, size, args.runs)
        server.stop()
        running = False
        for form, more in (
            ("text", []), ("arrow", []), ("arrow", ["--arrays", "list"]), ("parquet", ["--compression", "zstd"]),
            ("parquet", ["--compression", "snappy"]),
        ):
            command = [args.heapscan, "scan", server.data, "mixed20", "--database", "postgres", "--format", form, "--output", "/dev/null"]
            name = " ".join(["heapscan, --format", form, *more])
            action = lambda: subprocess.run(command + more, check=True, stderr=subprocess.DEVNULL) and None
            measure(name, args.rows, size, args.runs, action)
    finally:
        if running:
            with contextlib.suppress(Exception):
                server.stop()
        shutil.rmtree(folder, ignore_errors=True)


main()
