package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Free ports are below the range of local ports for outgoing connections on Linux and macOS. Otherwise such a
// connection could use the port during a restart of the control plane.
const (
	firstFreePort = 20000
	freePorts     = 10000
	portTries     = 100
)

// Listen opens the https port on 127.0.0.1 and remembers it. With port 0 it opens the remembered port, so that
// clients find the cluster again after a restart. At the first start it opens a free port.
func (d *Dir) Listen(port int) (net.Listener, error) {
	if port != 0 {
		return d.listen(port, fmt.Sprintf("port %d is taken by another process: stop it, choose another --port, or pass --port 0 for a free one", port))
	}
	remembered, err := d.rememberedPort()
	if err != nil {
		return nil, err
	}
	if remembered != 0 {
		return d.listen(remembered, fmt.Sprintf("port %d, which clients of this cluster know (%s), is taken by another process: stop it or choose another --port",
			remembered, d.Path("port")))
	}
	for range portTries {
		l, err := d.listen(firstFreePort+rand.IntN(freePorts), "")
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, fmt.Errorf("found no free port between %d and %d: choose one with --port", firstFreePort, firstFreePort+freePorts-1)
}

// listen opens the port and stores it. taken is the error text if another process uses the port.
func (d *Dir) listen(port int, taken string) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %w", taken, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open port %d (see --port): %w", port, err)
	}
	if err := writeFile(d.Path("port"), []byte(strconv.Itoa(port)+"\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("remember the port: %w", err), l.Close())
	}
	return l, nil
}

// rememberedPort returns the stored port, 0 before the first start.
func (d *Dir) rememberedPort() (int, error) {
	data, err := os.ReadFile(d.Path("port"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the port of the last start: %w", err)
	}
	port, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("%s holds no port: pass --port, or delete the file for a free one", d.Path("port"))
	}
	return port, nil
}
