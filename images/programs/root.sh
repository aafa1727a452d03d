#!/bin/sh
# Installs the packages in /debs into /root.fs beside the engine that is already there, and checks the result.
# LEAVE_OUT, KEEP: patterns of files that dpkg shall not unpack, and of those among them that it shall after all.
# SOURCE_DATE_EPOCH: the time of every file.
set -euf
root=/root.fs
export DEBIAN_FRONTEND=noninteractive
for pattern in $LEAVE_OUT; do set -- "$@" "--path-exclude=$pattern"; done
for pattern in $KEEP; do set -- "$@" "--path-include=$pattern"; done
mkdir -p $root/var/cache/debconf $root/etc
cp /etc/debconf.conf $root/etc/
find /debs -name '*.deb' -print0 | sort -z |
    xargs -0 dpkg --root="$root" --force-script-chrootless --force-depends "$@" --install
rm -rf $root/var/cache $root/etc/debconf.conf $root/var/log $root/usr/share/bug $root/usr/share/lintian \
    $root/var/lib/dpkg/lock $root/var/lib/dpkg/lock-frontend $root/root/.bashrc $root/root/.profile
find $root/var/lib/dpkg -name '*-old' -delete

# What a container engine mounts over: if it is there, running something leaves no trace in the image.
touch $root/etc/hostname $root/etc/hosts $root/etc/resolv.conf
echo 'root:x:0:0:root:/root:/usr/sbin/nologin
haloforge:x:10001:10001:haloforge:/nonexistent:/usr/sbin/nologin' >$root/etc/passwd
echo 'root:x:0:
haloforge:x:10001:' >$root/etc/group
ldconfig -r $root
rm -rf $root/var/cache

find $root -type d -perm /6000 -exec chmod a-s {} +
find $root -perm /6000 >/tmp/setuid
[ ! -s /tmp/setuid ] || { echo 'haloforge: a file is setuid or setgid'; cat /tmp/setuid; exit 1; }
find $root/app -type f -perm /111 | sed "s|^$root||" | while read -r program; do
    chroot $root /lib64/ld-linux-x86-64.so.2 --list "$program" || echo "$program not found"
done >/tmp/needed
! grep 'not found' /tmp/needed || { echo 'haloforge: a shared library is missing'; exit 1; }
find $root -depth -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
