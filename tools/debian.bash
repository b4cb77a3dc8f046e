# Sourced by tools/install_*.sh: packages of a Debian-like system, and none of the services that they would start.

# install_packages PROGRAMS PACKAGES [SERVICES], each a list of words: installs PACKAGES unless all PROGRAMS are there,
# and leaves SERVICES neither started nor enabled.
install_packages() {
  local programs=$1 packages=$2 services=${3:-} program missing= policy=/usr/sbin/policy-rc.d as_root=()
  for program in $programs; do
    command -v "$program" > /dev/null || missing=$program
  done
  if [ -z "$missing" ]; then
    return
  fi
  if ! command -v apt-get > /dev/null; then
    echo "no $missing and no apt-get here; install $packages with this system's own package manager" >&2
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo -n)
  fi
  # Keeps packages from starting services. A policy that is there already is left as it is.
  if [ -n "$services" ] && [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" > /dev/null
    "${as_root[@]}" chmod 755 "$policy"
    # shellcheck disable=SC2064 # as it is now
    trap "${as_root[*]} rm -f $policy" EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq
  # shellcheck disable=SC2086 # words
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends $packages > /dev/null
  if [ -n "$services" ] && command -v systemctl > /dev/null; then
    # shellcheck disable=SC2086 # words
    "${as_root[@]}" systemctl disable --quiet $services 2> /dev/null || true
  fi
}
