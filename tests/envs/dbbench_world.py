"""What the dbbench tests share: a table, statements on it with their results, and a MariaDB server on tmpfs."""

import os
import re
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

from envs.dbbench.problems import Problem, Table

HERE = Path(__file__).parent
# Statements of a transaction, and whether the change is there after them.
UPDATE = "UPDATE `t 1` SET name = 'x'"
TRANSACTIONS = {
    "taken back": (("BEGIN", UPDATE, "ROLLBACK"), False),
    "carried out": (("START TRANSACTION", UPDATE, "COMMIT"), True),
    "left open": (("BEGIN", UPDATE), True),
    "never begun": ((UPDATE, "ROLLBACK"), True),
    "over already": (("BEGIN", UPDATE, "COMMIT", "ROLLBACK"), True),
    "ended by another": (("BEGIN", UPDATE, "BEGIN", "ROLLBACK"), True),
    "ended by a definition": (("BEGIN", UPDATE, "CREATE TABLE u (a INT)", "ROLLBACK"), True),
    "with an error": (("BEGIN", UPDATE, "SELECT nothing", "ROLLBACK"), False),
}

TABLE = Table(
    name="t 1",
    columns=("name", "year", "score", "2013_x", "day"),
    rows=(
        ("Ann", "1999", "12", "1,200", "2020-02-28"),
        ("bob", "2005", "7", "3.5", "1999-12-31"),
        ("Émile", "2010", "100", "abc", "x"),
        ("Zoe", "", "9", "-", "2021-01-15 10:20:30"),
    ),
)
PROBLEM = Problem(text="?", tables=(TABLE,), answer=("x",))
_LINES = [
    line for line in (HERE / "dbbench_statements.sql").read_text(encoding="utf-8").splitlines() if line.strip("- ")
][2:]
STATEMENTS = list(zip(_LINES[::2], [line.removeprefix("-- ") for line in _LINES[1::2]], strict=True))
IS_CODE = re.compile(r"\d{4} \(\w{5}\)")
# Statements that change TABLE, with its rows afterwards; None: there is no such table any more.
ANN, BOB, EMILE, ZOE = TABLE.rows
CHANGES = [
    ("DELETE FROM `t 1` WHERE score < 10", [ANN, EMILE]),
    ("DELETE FROM `t 1` WHERE name LIKE '%e' ORDER BY name DESC LIMIT 1", [ANN, BOB, EMILE]),
    ("DELETE FROM `t 1`", []),
    ("TRUNCATE TABLE `t 1`", []),
    ("UPDATE `t 1` SET score = score + 1 WHERE name = 'ann'", [("Ann", "1999", "13", *ANN[3:]), BOB, EMILE, ZOE]),
    ("UPDATE `t 1` SET year = 1.50, score = -2 WHERE name = 'Ann'", [("Ann", "1.50", "-2", *ANN[3:]), BOB, EMILE, ZOE]),
    ("UPDATE `t 1` SET year = NULL WHERE name = 'Ann'", [("Ann", None, *ANN[2:]), BOB, EMILE, ZOE]),
    (
        "UPDATE `t 1` AS t SET t.year = CONCAT(t.year, '!') WHERE t.score > 50",
        [ANN, BOB, ("Émile", "2010!", *EMILE[2:]), ZOE],
    ),
    ("UPDATE `t 1` SET name = 'x' ORDER BY score + 0 LIMIT 1", [ANN, ("x", *BOB[1:]), EMILE, ZOE]),
    (
        "INSERT INTO `t 1` (name, score) VALUES ('it\\'s', 3), ('b', TRUE)",
        [*TABLE.rows, ("it's", None, "3", None, None), ("b", None, "1", None, None)],
    ),
    ("INSERT INTO `t 1` SET name = 'x', year = 7", [*TABLE.rows, ("x", "7", None, None, None)]),
    (
        "INSERT INTO `t 1` SELECT name, 'y', score, '', NULL FROM `t 1` WHERE name = 'bob'",
        [*TABLE.rows, ("bob", "y", "7", "", None)],
    ),
    ("INSERT IGNORE INTO `t 1` VALUES ('a', 'b', 'c', 'd', 'e')", [*TABLE.rows, ("a", "b", "c", "d", "e")]),
    ("REPLACE INTO `t 1` (name) VALUES ('r')", [*TABLE.rows, ("r", None, None, None, None)]),
    ("DROP TABLE `t 1`", None),
    ("ALTER TABLE `t 1` DROP COLUMN score", None),
    ("ALTER TABLE `t 1` ADD COLUMN extra INT", list(TABLE.rows)),
    ("ALTER TABLE `t 1` RENAME TO other", None),
]


def missing_mariadb():
    """Why no server can be started here; empty if one can."""
    missing = [name for name in ("mariadbd", "mariadb-install-db") if not shutil.which(name, path=_path())]
    return f"no {', '.join(missing)} here; tools/install_mariadb.sh installs them" if missing else ""


def _path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"


@contextmanager
def mariadb_server():
    """A server of its own on a socket, in memory where that can be; gives the path of its option file."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="dbbench-", dir=memory if memory.is_dir() else None))
    try:
        data, socket = root / "data", root / "socket"
        user = ["--user=root"] if os.geteuid() == 0 else []
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db", *user]
        environment = {**os.environ, "PATH": _path()}
        subprocess.run(
            [*install, "--auth-root-authentication-method=normal"], check=True, capture_output=True, env=environment
        )
        option_file = root / "mysql.cnf"
        option_file.write_text(f"[client]\nsocket = {socket}\nuser = root\n")
        command = ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}", "--skip-networking", *user]
        sizes = ["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0"]
        with subprocess.Popen([*command, *sizes], stderr=subprocess.PIPE, text=True, env=environment) as server:
            try:
                _wait_until_ready(server)
                yield option_file
            finally:
                server.kill()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _wait_until_ready(server):
    said = []
    for line in server.stderr:
        said.append(line)
        if "ready for connections" in line:
            # What it says from now on must not fill the pipe.
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return
    raise RuntimeError("mariadbd did not start:\n" + "".join(said))
