package cmdline

import (
	"fmt"
	"net"

	"github.com/spf13/pflag"
)

// Output configures the admin port and the log of a program. Programs with a configuration file embed it in
// their configuration.
type Output struct {
	// AdminListen is the host:port of the admin port; empty means none.
	AdminListen string `json:"adminListen"`
	// Log configures the log; see telemetry.NewLogger.
	Log struct {
		Level  string `json:"level"`
		Format string `json:"format"`
	} `json:"log"`
}

// NewOutput returns the defaults of a program with this admin port.
func NewOutput(adminListen string) Output {
	o := Output{AdminListen: adminListen}
	o.Log.Level, o.Log.Format = "info", "text"
	return o
}

// AddFlags adds the flags, with the current values as defaults.
func (o *Output) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.AdminListen, "admin-listen", o.AdminListen, "host:port of /livez, /readyz and /metrics, plain HTTP; empty switches it off")
	f.StringVar(&o.Log.Level, "log-level", o.Log.Level, "debug, info, warn or error")
	f.StringVar(&o.Log.Format, "log-format", o.Log.Format, "text or json")
}

// Validate checks the admin port. telemetry.NewLogger checks level and format of the log.
func (o *Output) Validate() error {
	if o.AdminListen == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(o.AdminListen); err != nil {
		return fmt.Errorf("admin-listen %q: use host:port, as 127.0.0.1:8081, or nothing to switch it off", o.AdminListen)
	}
	return nil
}
