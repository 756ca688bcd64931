package cmdline

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// Duration is a time.Duration that files and flags write with its unit, as "10s". It implements pflag.Value.
type Duration time.Duration

// UnmarshalJSON reads "10s".
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration %s: write it with a unit in quotes, as \"10s\"", b)
	}
	return d.Set(s)
}

// Set reads "10s".
func (d *Duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: write it with a unit, as \"10s\"", s)
	}
	*d = Duration(v)
	return nil
}

// String returns the form that Set accepts.
func (d *Duration) String() string { return time.Duration(*d).String() }

// Type returns the name of the value in the help of the flag.
func (d *Duration) Type() string { return "duration" }

// LoopbackOnly reports whether all addresses, each host:port, are those of this machine.
func LoopbackOnly(addresses []string) bool {
	for _, a := range addresses {
		if host, _, err := net.SplitHostPort(a); err != nil || !Loopback(host) {
			return false
		}
	}
	return true
}

// Loopback reports whether a host, a name or an address without port, is this machine. Data sent there never
// leaves it.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
