package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/thirdparty"
)

// The user of the proxy, the password in its form for a URL, and the password as crypt(3) stores it.
const (
	user     = "ann"
	password = "p%40ss%3Aword%2F%25"
	crypted  = "$1$hawser$GwP2LPYTvIrJwtUBbAsFJ1"
)

// squidConf configures a proxy that lets a known user connect to one address. It ends connections on which the
// broker sends nothing for a while.
const squidConf = `
http_port ADDR
auth_param basic program ROOT/usr/lib/squid/basic_ncsa_auth DIR/users
auth_param basic children 1 startup=1 idle=1
auth_param basic realm test
acl known proxy_auth REQUIRED
acl broker dst BROKER
http_access deny !broker
http_access allow known
http_access deny all
read_timeout IDLE seconds
cache deny all
access_log stdio:DIR/access.log
cache_log DIR/cache.log
coredump_dir DIR
pid_filename none
netdb_filename none
pinger_enable off
shutdown_lifetime 0 seconds
visible_hostname proxy.test
dns_nameservers HOST
unlinkd_program ROOT/usr/lib/squid/unlinkd
logfile_daemon ROOT/usr/lib/squid/log_file_daemon
error_directory ROOT/usr/share/squid-langpack/templates
icon_directory ROOT/usr/share/squid/icons
mime_table ROOT/usr/share/squid/mime.conf
`

// squid starts Squid at an unused address of the fleet's subnet. idle is its timeout in seconds.
func squid(t *testing.T, port string, idle int) (addr string) {
	t.Helper()
	program, err := thirdparty.FetchPackage(t.Context(), "../../..", "squid", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	broker, _, err := net.SplitHostPort(f.BrokerAddr())
	if err != nil {
		t.Fatal(err)
	}
	host := broker[:strings.LastIndexByte(broker, '.')] + ".200"
	addr = net.JoinHostPort(host, port)
	dir := t.TempDir()
	conf := strings.NewReplacer("ADDR", addr, "BROKER", broker, "IDLE", fmt.Sprint(idle), "ROOT", filepath.Join(program, "root"), "DIR", dir, "HOST", host).Replace(squidConf)
	for name, text := range map[string]string{"squid.conf": conf, "users": user + ":" + crypted + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Squid refuses to run as root. In a user namespace it has another user id, which owns the same files.
	f.Run(t, childproc.Spec{
		Name: "squid", Path: "unshare", LogFile: filepath.Join(f.LogDir(), "squid-"+port+".log"),
		Args: []string{"--user", "--map-user=1", "--map-group=1", filepath.Join(program, "squid"), "-N", "-f", filepath.Join(dir, "squid.conf")},
		Ready: func(ctx context.Context) error {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	})
	t.Cleanup(func() {
		if b, err := os.ReadFile(filepath.Join(dir, "access.log")); t.Failed() && (err == nil || !errors.Is(err, os.ErrNotExist)) {
			t.Logf("the proxy: %s, %v", b, err)
		}
	})
	return addr
}
