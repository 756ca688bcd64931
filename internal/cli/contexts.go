package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/cmdline"
)

// contexts is the configuration file that names brokers.
type contexts struct {
	// CurrentContext is the name of the context that is used without --broker-context.
	CurrentContext string `json:"currentContext"`
	// Contexts are the brokers by name; paths are relative to this file.
	Contexts map[string]access `json:"contexts"`
}

// access is one broker and the credentials for it. Paths are relative to the file.
type access struct {
	// Broker is its host:port. Several brokers of one hub have commas between them.
	Broker string `json:"broker"`
	// ServerName is the name in its certificate, if it differs from the host of broker.
	ServerName string `json:"serverName"`
	// CA is the PEM file of the CA that signed its certificate.
	CA string `json:"ca"`
	// Cert is the PEM file of an operator's or viewer's certificate.
	Cert string `json:"cert"`
	// Key is the PEM file of its private key.
	Key string `json:"key"`
	// Insecure is plaintext, to a broker on this machine only.
	Insecure bool `json:"insecure"`
	// Proxy is the HTTP proxy to the broker, as http://proxy.example:3128, or none.
	Proxy string `json:"proxy"`
	// ProxyCA is the PEM file of the CA that signed the certificate of an https:// proxy.
	ProxyCA string `json:"proxyCA"`
}

// envConfig is the environment variable with the file, used without --config.
const envConfig = "HAWSER_CONFIG"

// readContexts reads the named file, or else the default file, which may be missing.
func readContexts(named string) (c contexts, file string, err error) {
	if file = named; file == "" {
		dir, err := os.UserConfigDir()
		if err != nil { // without a home directory there is no default file
			return c, "", nil //nolint:nilerr // as it says
		}
		file = filepath.Join(dir, program, "config.yaml")
	}
	text, err := os.ReadFile(file)
	switch {
	case err == nil:
	case named == "" && errors.Is(err, fs.ErrNotExist):
		return c, file, nil
	default:
		return c, file, err
	}
	if err := cmdline.Decode(text, &c); err != nil {
		return c, file, fmt.Errorf("%s: %w", file, err)
	}
	return c, file, nil
}

// context returns the broker of a context, of the current one if name is empty.
func (r *remote) context(name string) (access, error) {
	c, file, err := readContexts(cmp.Or(r.config, os.Getenv(envConfig)))
	if err != nil {
		return access{}, err
	}
	if name == "" {
		name = c.CurrentContext
	}
	if name == "" {
		return access{}, nil
	}
	a, ok := c.Contexts[name]
	if !ok {
		return a, fmt.Errorf("%s has no context %q: there are %s", file, name, strings.Join(slices.Sorted(maps.Keys(c.Contexts)), ", "))
	}
	for _, path := range []*string{&a.CA, &a.Cert, &a.Key, &a.ProxyCA} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
	return a, nil
}

// complete sets the completion of a flag.
func complete(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // no such flag, or registered twice: a programming error
	}
}

// contextNames completes the name of a context.
func (r *remote) contextNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	c, _, err := readContexts(cmp.Or(r.config, os.Getenv(envConfig)))
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
	}
	return slices.Sorted(maps.Keys(c.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

// resolve fills in flags that are not set: from the environment, and then from the current context. If a
// context is named, only that context is used. So no command goes to another broker than the named one.
func (r *remote) resolve(flags *pflag.FlagSet) error {
	a, err := r.context(r.contextName)
	if err != nil {
		return err
	}
	for _, v := range []struct {
		flag, env string
		from      string
		into      *string
	}{
		{"broker", "HAWSER_BROKER", a.Broker, &r.broker},
		{"server-name", "HAWSER_SERVER_NAME", a.ServerName, &r.serverName},
		{"ca", "HAWSER_CA", a.CA, &r.ca},
		{"cert", "HAWSER_CERT", a.Cert, &r.cert},
		{"key", "HAWSER_KEY", a.Key, &r.key},
		{"proxy", "HAWSER_PROXY", a.Proxy, &r.proxy.URL},
		{"proxy-ca", "HAWSER_PROXY_CA", a.ProxyCA, &r.proxy.CAFile},
	} {
		if flags.Changed(v.flag) {
			continue
		}
		*v.into = v.from
		if set := os.Getenv(v.env); set != "" && r.contextName == "" {
			*v.into = set
		}
	}
	if !flags.Changed("insecure") {
		r.insecure = a.Insecure
	}
	return nil
}
