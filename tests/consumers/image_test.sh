#!/bin/sh
# image_test.sh CMAKE BUILD: makes an image from deploy/Containerfile with what is in the folder BUILD, upon a Debian that debootstrap
# makes in place of a pulled one, and trains in it. Buildah makes it where there is one; else the steps are run in a chroot.
# The stages that compile are left out: the folder BUILD takes their place (--build-context).
set -eu
build=$2
. "$(dirname "$0")/program.sh"
tree=$(cd "$here/../.." && pwd)

skip() {
  echo "NOT TESTED: $*"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "this needs root"
command -v debootstrap >/dev/null || skip "there is no debootstrap"

base=$scratch/base
out=$scratch/out
quietly "$tree/deploy/image-root" "$build" "$out" "$build/bin/mnist"
mirror=$(apt-get indextargets --format '$(SITE)' | head -n 1)
quietly debootstrap --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$base" "$mirror"

# With Buildah, which needs no daemon; everything that it stores is in $scratch.
tool() {
  buildah --root "$scratch/storage" --runroot "$scratch/run" --storage-driver vfs "$@"
}
make_with_buildah() {
  export BUILDAH_ISOLATION=chroot
  echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$scratch/policy"
  empty=$(tool from --signature-policy "$scratch/policy" scratch)
  quietly tool add "$empty" "$base" /
  quietly tool commit --signature-policy "$scratch/policy" "$empty" localhost/base
  quietly tool bud --signature-policy "$scratch/policy" --network host --file "$tree/deploy/Containerfile" --target run \
    --build-arg base=localhost/base --build-arg stop_signal=SIGUSR1 --build-context "build=$out" --tag localhost/train "$tree"
  container=$(tool from --signature-policy "$scratch/policy" --pull-never localhost/train)
  settings=$(tool inspect --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.StopSignal}} {{.OCIv1.Config.Cmd}}' "$container")
  [ "$settings" = "1000:1000 SIGUSR1 [tutti doctor]" ] || fail "the image has other settings: $settings"
  in_image() { tool run "$container" -- "$@"; }
}

# The instructions of the last stage, one a line: COPY --from=build A B, and RUN. The others are only settings.
make_in_a_chroot() {
  echo "NOT TESTED: buildah, which is not installed; the steps are run in a chroot"
  sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$tree/deploy/Containerfile" | sed -n '/ AS run$/,$p' >"$scratch/steps"
  cp /etc/resolv.conf "$base/etc/"
  while read -r instruction words; do
    case $instruction in
      COPY)
        # shellcheck disable=SC2086  # --from=build, from, to
        set -- $words
        if [ -d "$out$2" ]; then cp -a "$out$2/." "$base$3"; else cp "$out$2" "$base$3"; fi
        ;;
      RUN) quietly chroot "$base" sh -c "$words" </dev/null ;;
    esac
  done <"$scratch/steps"
  in_image() {
    # shellcheck disable=SC2016  # for the shell that is started
    unshare --mount sh -c 'mount -t proc none "$1/proc" && mount --rbind /dev "$1/dev" && root=$1 && shift &&
      exec chroot --userspec 1000:1000 "$root" env HOME=/home/train "$@"' sh "$base" "$@"
  }
}

if command -v buildah >/dev/null; then make_with_buildah; else make_in_a_chroot; fi

[ "$(in_image id -u)" = 1000 ] || fail "the user is not 1000"
# Two workers in the image get the weights that one has outside of it.
weights() { # command...
  "$@" --lanes 2 --threads 1 --steps 3 --logdir= --hash-every 0 2>&1 | tee "$scratch/log"
}
in_image tutti doctor >"$scratch/log" 2>&1 || { cat "$scratch/log" && fail "tutti doctor"; }
inside=$(weights in_image tutti run -n 2 -- mnist | grep -o 'test accuracy.*') || { cat "$scratch/log" && fail "mnist inside"; }
outside=$(weights "$build/bin/mnist" | grep -o 'test accuracy.*') || { cat "$scratch/log" && fail "mnist outside"; }
[ "$inside" = "$outside" ] || fail "inside: $inside; outside: $outside"
du -sm "$out/root" | awk '{ print "what the image has besides the distribution: " $1 " MB" }'
echo "all as expected"
