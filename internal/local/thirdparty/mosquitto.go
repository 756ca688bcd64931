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

// FetchMosquitto fetches Mosquitto as [FetchPackage] does, and returns the path of the program.
func FetchMosquitto(ctx context.Context, root string, progress io.Writer) (string, error) {
	dir, err := FetchPackage(ctx, root, "mosquitto", progress)
	return filepath.Join(dir, "mosquitto"), err
}

// Config configures a Mosquitto. Its state outlives it, so a restart continues as far as the configuration
// allows.
type Config struct {
	// Program is the result of FetchMosquitto.
	Program string
	// Dir is the directory for configuration, log and state.
	Dir string
	// Addr is the host:port to listen on, with an IP address.
	Addr string
	// Text is a configuration without listener; paths in it are absolute.
	Text string
}

// Conf is the configuration file in Dir.
func (c Config) Conf() string { return filepath.Join(c.Dir, "mosquitto.conf") }

// Spec writes the configuration into Dir and returns the process spec; Mosquitto is ready when it listens.
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
		text += "\nuser root\n" // otherwise it switches to a user that cannot read the files
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

// runs checks the log for the line that Mosquitto writes when all its ports are open. Another program might
// answer at its address.
func runs(log string) error {
	b, err := os.ReadFile(log)
	if err != nil {
		return err
	}
	last := b[max(0, bytes.LastIndex(b, []byte(" starting\n"))):]
	if !bytes.Contains(last, []byte(" running\n")) {
		return errors.New("its log does not report that it is running")
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

// Files are the paths of the files in the configuration of deploy/mosquitto.
type Files struct{ CA, Cert, Key, ACL string }

// Deployed returns the configuration of deploy/mosquitto in the source tree at root, as a Text, with the files
// of this machine. The state of Mosquitto is below dir.
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

// Start starts Mosquitto at c.Addr, or at a free port of 127.0.0.1 if that is empty, and returns its address.
// It ends with Stop or Kill, or with this process.
func Start(ctx context.Context, c Config) (p *childproc.Process, addr string, err error) {
	chosen := c.Addr != ""
	for range 10 {
		if !chosen {
			// Below the ephemeral ports of the system, so that no connection takes the port while Mosquitto restarts.
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
