#!/usr/bin/env bash
# A MariaDB server for the tests marked mariadb. Only the programs: the tests start servers of their own, on data folders
# of their own.
set -euo pipefail
. "$(dirname "$0")/debian.bash"

install_packages "mariadbd mariadb-install-db" "mariadb-server" "mariadb"
