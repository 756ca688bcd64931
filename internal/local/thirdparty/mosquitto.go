package thirdparty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/hawser-io/hawser/internal/childproc"
)

// FetchMosquitto fetches Mosquitto as [thirdparty.FetchPackage] does and returns the path of the program.
func FetchMosquitto(ctx context.Context, root string, progress io.Writer) (string, error) {
	dir, err := FetchPackage(ctx, root, "mosquitto", progress)
	return filepath.Join(dir, "mosquitto"), err
}

// Config says which Mosquitto to run. What it keeps outlives it: one that is
// started again goes on, as far as its configuration lets it.
type Config struct {
	// Program is what Fetch returns.
	Program string
	// Dir gets the configuration, the log and what Mosquitto writes down.
	Dir string
	// Addr is host:port where it listens, an IP address.
	Addr string
	// Text is a configuration without listener; paths in it are absolute.
	Text string
}

// Conf is the configuration file in Dir.
func (c Config) Conf() string { return filepath.Join(c.Dir, "mosquitto.conf") }

// Spec writes the configuration into Dir and returns how to start Mosquitto; it
// is ready when it listens.
func (c Config) Spec() (childproc.Spec, error) {
	host, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return childproc.Spec{}, fmt.Errorf("mosquitto: %w", err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return childproc.Spec{}, fmt.Errorf("mosquitto: %w", err)
	}
	text := fmt.Sprintf("listener %s %s\nsocket_domain ipv4\n%s", port, host, c.Text)
	if os.Geteuid() == 0 {
		text += "\nuser root\n" // else it becomes a user who cannot read the files
	}
	if err := os.WriteFile(c.Conf(), []byte(text), 0o600); err != nil {
		return childproc.Spec{}, fmt.Errorf("mosquitto: %w", err)
	}
	log := filepath.Join(c.Dir, "mosquitto.log")
	return childproc.Spec{
		Name: "mosquitto", Path: c.Program, Args: []string{"-c", c.Conf()}, LogFile: log,
		Ready: func(ctx context.Context) error { return errors.Join(runs(log), listens(ctx, c.Addr)) },
	}, nil
}

// runs looks for the line that Mosquitto writes when it has all its ports: that
// somebody answers at its address does not tell that it does.
func runs(log string) error {
	b, err := os.ReadFile(log)
	if err != nil {
		return err
	}
	last := b[max(0, bytes.LastIndex(b, []byte(" starting\n"))):]
	if !bytes.Contains(last, []byte(" running\n")) {
		return errors.New("it has not said that it is running")
	}
	return nil
}

func listens(ctx context.Context, addr string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Files are where the files are that the configuration of deploy/mosquitto names.
type Files struct{ CA, Cert, Key, ACL string }

// Deployed returns the configuration of deploy/mosquitto in the source tree at
// root, as a Text, with the files of this machine; what Mosquitto writes down is
// below dir.
func Deployed(root, dir string, f Files) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "deploy", "mosquitto", "mosquitto.conf"))
	if err != nil {
		return "", fmt.Errorf("mosquitto: %w", err)
	}
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return "", fmt.Errorf("mosquitto: %w", err)
	}
	text := listener.ReplaceAllString(string(b), "")
	return strings.NewReplacer(
		"/mosquitto/certs/ca.crt", f.CA, "/mosquitto/certs/tls.crt", f.Cert, "/mosquitto/certs/tls.key", f.Key,
		"/mosquitto/acl", f.ACL, "/mosquitto/data/", data+"/",
	).Replace(text), nil
}

var listener = regexp.MustCompile(`(?m)^listener .*\n`)

// Start starts a Mosquitto at c.Addr or, where that is empty, at a free port of
// 127.0.0.1, and returns its address, too. It ends with Stop or Kill, or with this
// process.
func Start(ctx context.Context, c Config) (p *childproc.Process, addr string, err error) {
	chosen := c.Addr != ""
	for range 10 {
		if !chosen {
			// Below the ports that the system gives to connections: none of those can
			// have it while Mosquitto is started again.
			c.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort)))
		}
		spec, err := c.Spec()
		if err != nil {
			return nil, "", err
		}
		if p, err = childproc.Start(ctx, spec); err == nil {
			return p, c.Addr, nil
		}
		if chosen || !strings.Contains(err.Error(), "Address already in use") {
			return nil, "", err
		}
	}
	return nil, "", errors.New("mosquitto: found no free port")
}

const firstPort, lastPort = 12000, 19999
