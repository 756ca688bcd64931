#!/bin/sh
# Fetches Mosquitto, a stock MQTT 5 broker, and prints the directory that holds
# the program "mosquitto". It is Debian's package with the libraries that a small
# system lacks, unpacked and not installed: no service, no root. It is fetched
# once for each state of this script and kept in
#
#   ${HAWSER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hawser}/mosquitto/
#
# APT checks the signatures; the file "packages" beside the program tells the
# versions and digests. Standard output has the directory only. Needs apt-get
# and dpkg: Debian 12 or later, or Ubuntu 22.04 or later.
set -eu

say() { echo "mosquitto: $*" >&2; }
fail() { say "$*"; exit 1; }

packages='mosquitto libwrap0 libdlt2'
cache=${HAWSER_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or HAWSER_CACHE}/.cache}/hawser}/mosquitto
case $cache in /*) ;; *) cache=$PWD/$cache ;; esac
key=$(cksum <"$0" | cut -d ' ' -f 1)
out=$cache/$key
if [ -x "$out/mosquitto" ]; then
	echo "$out"
	exit 0
fi

for need in apt-get dpkg; do
	command -v $need >/dev/null ||
		fail "$need is not in the PATH: Mosquitto is taken from Debian's packages, so run this on Debian or Ubuntu"
done
mkdir -p "$cache"
# Two fetches at once do the same work twice; the result is right all the same,
# since it appears by a rename.
tmp=$(mktemp -d "$cache/.fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# The lists of this machine may be missing or out of date, and only root may renew
# them: then lists of our own are fetched beside them.
download() {
	(cd "$tmp" && apt-get -q "$@" download $packages)
}
download_anew() {
	mkdir -p "$tmp/state/lists/partial" "$tmp/cache/archives/partial"
	set -- -o Dir::State="$tmp/state" -o Dir::State::lists="$tmp/state/lists" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$tmp/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=
	apt-get -q "$@" update && download "$@"
}
say "fetching $packages with apt-get"
if ! download >"$tmp/log" 2>&1 && ! download_anew >>"$tmp/log" 2>&1; then
	cat "$tmp/log" >&2
	fail "apt-get cannot download $packages: is there a network, and do /etc/apt/sources.list or sources.list.d name Debian's or Ubuntu's packages?"
fi
mkdir "$tmp/out" "$tmp/out/root"
for deb in "$tmp"/*.deb; do
	dpkg -x "$deb" "$tmp/out/root"
	echo "$(dpkg-deb -f "$deb" Package Version Architecture | sed 's/^[^:]*: *//' | tr '\n' ' ')sha256:$(sha256sum "$deb" | cut -d ' ' -f 1)"
done >"$tmp/out/packages"
cat >"$tmp/out/mosquitto" <<'END'
#!/bin/sh
# The program becomes this process, so that signals reach it.
root=$(dirname -- "$0")/root
LD_LIBRARY_PATH=$(ls -d "$root"/usr/lib/*-linux-gnu* "$root"/lib/*-linux-gnu* 2>/dev/null | paste -s -d :)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$root/usr/sbin/mosquitto" "$@"
END
chmod +x "$tmp/out/mosquitto"
# It prints its version and, having been asked for help only, may end with 1.
version=$("$tmp/out/mosquitto" -h 2>&1 || :)
case $version in
"mosquitto version 2."*) ;;
*) fail "what was fetched does not run: $(echo "$version" | head -n 3)
hint: install the packages of the libraries that it misses, such as libcap2 libnsl2 libssl3 libsystemd0 libtirpc3" ;;
esac
mv -T "$tmp/out" "$out" 2>/dev/null || [ -x "$out/mosquitto" ] || fail "cannot write $out"
say "$(sed -n 's/^\(mosquitto [^ ]*\).*/\1/p' "$out/packages")"
echo "$out"
