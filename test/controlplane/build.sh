#!/bin/sh
# Builds the test control plane and kubectl and prints the directory that holds
# both. They are built once for each state of their sources, of this script and
# of the Go version, and kept in
#
#   ${HAWSER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hawser}/controlplane/
#
# Standard output has the directory only; what is going on goes to standard
# error. Needs go and git.
set -eu

say() { echo "control plane: $*" >&2; }
fail() { say "$*"; exit 1; }

cache=${HAWSER_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or HAWSER_CACHE}/.cache}/hawser}/controlplane
case $cache in /*) ;; *) cache=$PWD/$cache ;; esac
cd -- "$(dirname -- "$0")"
for need in go git; do
	command -v $need >/dev/null || fail "$need is not in the PATH: install it and try again"
done

# The same settings everywhere, whatever the caller's environment: every other
# combination would compile two thousand packages once more.
export LC_ALL=C CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly
unset GOOS GOARCH

key=$({
	go version
	for f in build.sh go.mod go.sum $(find . -name '*.go' ! -name '*_test.go' | sort); do
		echo "== $f"
		cat "$f"
	done
} | git hash-object --stdin)
out=$cache/$key

# found prints the directory and ends the script if the programs are there. The
# time of the directory tells when it was last used.
found() {
	if [ -x "$out/controlplane" ] && [ -x "$out/kubectl" ]; then
		touch "$out"
		echo "$out"
		exit 0
	fi
}
found

mkdir -p "$cache"
# One build at a time. Without flock two builds do the same work twice; the
# result is right all the same, since it appears by a rename.
if command -v flock >/dev/null; then
	exec 9>"$cache/lock"
	holder=$cache/holder
	wait=-n
	until flock $wait 9; do
		say "waiting for $(cat "$holder" 2>/dev/null || echo 'another build')"
		wait="-w ${HAWSER_WAIT_SECONDS:-15}"
	done
	found
	echo "the build of process $$ in $PWD, since $(date +%T)" >"$holder"
	rm -rf "$cache"/.build.* # left by builds that were killed
fi

tmp=$(mktemp -d "$cache/.build.XXXXXX")
build='' reporter=''
cleanup() {
	for pid in $build $reporter; do kill "$pid" 2>/dev/null || :; done
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# kubernetes tells its version only to those who built it with these flags.
version=$(sed -n 's/^[[:space:]]*k8s\.io\/kubernetes \(v[^ ]*\).*/\1/p' go.mod)
[ -n "$version" ] || fail "go.mod does not name the version of k8s.io/kubernetes"
major=${version#v} major=${major%%.*}
minor=${version#*.} minor=${minor%%.*}
flags='-s -w'
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	flags="$flags -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor"
done

say "building Kubernetes $version and kubectl: 4 to 6 minutes on 2 cores and 4 GB of disk with an empty Go build cache, else seconds"
began=$(date +%s)
seconds() { echo $(($(date +%s) - began)); }
log=$tmp/log
mkdir "$tmp/bin"
go build -v -trimpath -buildvcs=false -ldflags "$flags" -o "$tmp/bin/" . k8s.io/kubernetes/cmd/kubectl >"$log" 2>&1 9>&- &
build=$!
(
	while sleep 15 2>/dev/null; do
		downloaded=$(grep -c '^go: downloading' "$log" || :)
		compiled=$(grep -c '^[^ #:]*$' "$log" || :)
		say "$compiled of about 2700 packages compiled, $downloaded modules downloaded, $(seconds) s"
	done
) >/dev/null 9>&- &
reporter=$!
status=0
wait "$build" || status=$?
build=''
if [ "$status" -ne 0 ]; then
	grep '[ #:]' "$log" | grep -v '^go: downloading' | tail -n 40 >&2 || :
	fail "the build failed after $(seconds) s, see above; is there room on the disk of $(go env GOCACHE)?"
fi

if [ -d "$out" ]; then rm -rf "$out"; fi # incomplete
mv "$tmp/bin" "$out"
# Keep the two builds used last.
ls -1dt "$cache"/*/ | tail -n +3 | while read -r old; do rm -rf "$old"; done
say "built in $(seconds) s"
echo "$out"
