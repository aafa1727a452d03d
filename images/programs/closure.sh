#!/bin/sh
# closure PACKAGE...: downloads these packages and all that they depend on to /debs, as for an empty system.
# WITHOUT: packages that are left out although something depends on them.
set -eu
packages sources
mkdir -p /root.fs/var/lib/dpkg /debs/partial
: >/root.fs/var/lib/dpkg/status
apt-get install --simulate --no-install-recommends -o Dir::State::status=/root.fs/var/lib/dpkg/status "$@" |
    sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) .*/\1=\2/p' >/tmp/closure
[ -s /tmp/closure ] || { echo 'haloforge: these packages cannot be installed together'; exit 1; }
for name in $WITHOUT; do sed -i "/^$name=/d" /tmp/closure; done
cd /debs
xargs apt-get download -q </tmp/closure
apt-get clean
rm -rf /var/lib/apt/lists/*
