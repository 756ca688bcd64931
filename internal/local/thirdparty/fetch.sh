#!/bin/sh
# usage: fetch.sh mosquitto|squid|prometheus|prometheus-alertmanager|postgresql|pgbouncer
#
# Fetches a program that tests and demo use (Mosquitto, an MQTT 5 broker;
# Squid, a proxy; Prometheus, with promtool; its Alertmanager; PostgreSQL, server
# and client; PgBouncer, its connection pooler) and prints the directory that holds
# its commands. It is Debian's package with the libraries that this system lacks,
# unpacked and not installed: no service, no root. It is fetched once for each
# state of this script and stored in
#
#   ${HAWSER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hawser}/PROGRAM/
#
# APT checks the signatures; the file "packages" beside the commands has the
# versions and digests, the directory "root" has what was unpacked. Standard
# output has the directory only. Needs apt-get and dpkg: Debian 12 or later, or
# Ubuntu 22.04 or later.
set -eu
export LC_ALL=C

program=${1:-}
say() { echo "$program: $*" >&2; }
fail() { say "$*"; exit 1; }

# What else of the package is needed, and the begin of the version line of the program,
# or of the command that main names. PostgreSQL has a package for each major version, of
# which Debian's package postgresql names one.
main=$program
case $program in
mosquitto) more='' asked=-h says='mosquitto version 2.' ;;
squid) more='squid-common squid-langpack' asked=-v says='Squid Cache: Version ' ;;
prometheus) more='' asked=--version says='prometheus, version ' ;;
prometheus-alertmanager) more='' asked=--version says='alertmanager, version ' ;;
postgresql) more='' main=postgres asked=--version says='postgres (PostgreSQL) ' ;;
pgbouncer) more='' asked=--version says='PgBouncer ' ;;
*) sed -n '2s/^# //p' "$0" >&2; exit 2 ;;
esac

cache=${HAWSER_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or HAWSER_CACHE}/.cache}/hawser}/$program
case $cache in /*) ;; *) cache=$PWD/$cache ;; esac
key=$(cksum <"$0" | cut -d ' ' -f 1)
out=$cache/$key
if [ -x "$out/$main" ]; then
	echo "$out"
	exit 0
fi

for need in apt-get dpkg; do
	command -v $need >/dev/null ||
		fail "$need is not in the PATH: $program is taken from Debian's packages, so run this on Debian or Ubuntu"
done
mkdir -p "$cache"
# Two fetches at once do the same work twice; the result is right all the same,
# since it appears by a rename.
tmp=$(mktemp -d "$cache/.fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# download gets the package and the libraries that would be installed with it. APT
# only plans that: what is not a library, such as users, fonts and services, is not
# needed.
download() {
	package=$program
	if [ "$program" = postgresql ]; then
		package=$(apt-cache "$@" depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p')
		[ -n "$package" ] || return 1
		more=postgresql-client-${package#postgresql-}
	fi
	plan=$(apt-get -q "$@" -s --no-install-recommends install "$package") || return 1
	libraries=$(echo "$plan" | sed -n 's/^Inst \(lib[^ ]*\) .*/\1/p' | grep -v -e '^libjs-' -e '-perl$' || :)
	# shellcheck disable=SC2086 # names of packages have no spaces
	(cd "$tmp" && apt-get -q "$@" download "$package" $more $libraries)
}
# The lists of this machine may be missing or out of date, and only root may renew
# them. Then separate lists are fetched.
download_again() {
	mkdir -p "$tmp/state/lists/partial" "$tmp/cache/archives/partial"
	set -- -o Dir::State="$tmp/state" -o Dir::State::lists="$tmp/state/lists" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$tmp/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=
	apt-get -q "$@" update && download "$@"
}
say "fetching Debian's package with apt-get"
if ! download >"$tmp/log" 2>&1 && ! download_again >>"$tmp/log" 2>&1; then
	cat "$tmp/log" >&2
	fail "apt-get cannot download it: is there a network, and do /etc/apt/sources.list or sources.list.d name Debian's or Ubuntu's packages?"
fi
mkdir "$tmp/out" "$tmp/out/root"
for deb in "$tmp"/*.deb; do
	dpkg -x "$deb" "$tmp/out/root"
	echo "$(dpkg-deb -f "$deb" Package Version Architecture | sed 's/^[^:]*: *//' | tr '\n' ' ')sha256:$(sha256sum "$deb" | cut -d ' ' -f 1)"
done >"$tmp/out/packages"
for path in "$tmp"/out/root/usr/sbin/* "$tmp"/out/root/usr/bin/* "$tmp"/out/root/usr/lib/postgresql/*/bin/*; do
	[ -x "$path" ] || continue
	cat >"$tmp/out/${path##*/}" <<END
#!/bin/sh
# The program becomes this process, so that signals reach it.
root=\$(dirname -- "\$0")/root
LD_LIBRARY_PATH=\$(ls -d "\$root"/usr/lib/*-linux-gnu* "\$root"/lib/*-linux-gnu* 2>/dev/null | paste -s -d :)\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "\$root/${path#"$tmp/out/root/"}" "\$@"
END
	chmod +x "$tmp/out/${path##*/}"
done
# Having been asked for help only, a program may end with 1.
version=$("$tmp/out/$main" $asked 2>&1 || :)
case $version in
"$says"*) ;;
*) fail "what was fetched does not run: $(echo "$version" | head -n 3)
hint: install the package of the library that it misses" ;;
esac
mv -T "$tmp/out" "$out" 2>/dev/null || [ -x "$out/$main" ] || fail "cannot write $out"
say "$(sed -n "s/^\(${package:-$program} [^ ]*\).*/\1/p" "$out/packages")"
echo "$out"
