#!/bin/sh
# packages sources            set up where packages come from
# packages install PACKAGE... the same, and install these into this system
# SUITES: further suites of the archive that the base uses; a package comes from one only if nothing else has it.
# PINS: NAME=VERSION words; these versions and no others. A version that is gone is an error, not an upgrade.
set -eu
export DEBIAN_FRONTEND=noninteractive
mode=$1
shift

if [ -n "$SUITES" ]; then
    apt-get update -q
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
    for suite in $SUITES; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $suite main"
        printf 'Package: *\nPin: release a=%s\nPin-Priority: 90\n\n' "$suite" >>/etc/apt/preferences.d/further
    done >/etc/apt/sources.list.d/further.list
fi
apt-get update -q
for pin in $PINS; do
    printf 'Package: %s\nPin: version %s\nPin-Priority: 1001\n\n' "${pin%%=*}" "${pin#*=}" >>/etc/apt/preferences.d/pins
done
for pin in $PINS; do
    candidate=$(apt-cache policy "${pin%%=*}" | sed -n 's/^  Candidate: //p')
    [ "$candidate" = "${pin#*=}" ] || echo "haloforge: pinned $pin, the archive has ${candidate:-nothing}"
done >/tmp/moved
[ ! -s /tmp/moved ] || { cat /tmp/moved; exit 1; }

[ "$mode" = install ] || exit 0
apt-get install -qy --no-install-recommends "$@"
apt-get clean
rm -rf /var/lib/apt/lists/*
