#!/bin/sh
# in_a_copy.sh SCRATCH HIDDEN... -- COMMAND...: runs the command in a copy of this system, in which the folders HIDDEN are empty.
# Everything that it writes is lost but for what it writes in SCRATCH. Needs root and a mount namespace (unshare -m).
set -eu
scratch=$1
shift
copy=$scratch/copy
mkdir -p "$copy"
mount -t tmpfs none "$copy"
mkdir "$copy/upper" "$copy/work" "$copy/root"
mount -t overlay none -o "lowerdir=/,upperdir=$copy/upper,workdir=$copy/work" "$copy/root"
for folder in /proc /dev /sys; do mount --rbind "$folder" "$copy/root$folder"; done
while [ "$1" != -- ]; do
  if [ -d "$copy/root$1" ]; then mount -t tmpfs none "$copy/root$1"; fi
  shift
done
shift
mkdir -p "$copy/root$scratch"
mount --bind "$scratch" "$copy/root$scratch"
exec chroot "$copy/root" "$@"
