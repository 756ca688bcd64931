package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
)

// config holds all settings. The file uses these names; a flag overrides the file.
type config struct {
	Listen  string `json:"listen"`
	DataDir string `json:"dataDir"`
	Store   struct {
		Engine storeEngine `json:"engine"`
		// URL and PasswordFile are for PostgreSQL.
		URL          string `json:"url"`
		PasswordFile string `json:"passwordFile"`
	} `json:"store"`

	TLS struct {
		CertFile     string `json:"certFile"`
		KeyFile      string `json:"keyFile"`
		ClientCAFile string `json:"clientCAFile"`
		// AgentCAFile is a PEM file of further CAs, which sign certificates of agents only.
		AgentCAFile string `json:"agentCAFile"`
	} `json:"tls"`
	// Identities maps client certificates to sources, operators and viewers, and has the limits of each source.
	// Agents are identified by the common name of Open Cluster Management.
	Identities identity.Mapping `json:"identities"`
	// ClusterQuota is the limit of a cluster over all sources.
	ClusterQuota identity.Limits `json:"clusterQuota"`
	Insecure     bool            `json:"insecure"`

	// Registration is the setting for hubs that clusters join through this broker. Without it the broker serves
	// works only, and admits any client with a valid certificate.
	Registration struct {
		// Source is the source that serves registration, one of identities. Clusters that its hub has not accepted
		// receive no works.
		Source string `json:"source"`
	} `json:"registration"`
	// Tokens are the accepted bearer tokens and their identities. They come from the hub whose source serves
	// registration.
	Tokens tokens.Config `json:"tokens"`

	MaxEventBytes int `json:"maxEventBytes"`
	// HandshakesPerAddress is the maximum number of handshakes in progress of one address, others wait. It also
	// bounds failed handshakes.
	HandshakesPerAddress int `json:"maxHandshakesPerAddress"`
	// ProxyProtocolFrom are the load balancers whose PROXY protocol header is trusted.
	ProxyProtocolFrom []string `json:"proxyProtocolFrom"`

	DrainTimeout cmdline.Duration `json:"drainTimeout"`

	// ServerConfig is the configuration file of OCM's gRPC server, which this broker replaces.
	ServerConfig string `json:"serverConfig"`

	// Audit is the level of the audit stream on the standard output.
	Audit audit.Level `json:"audit"`

	cmdline.Output
}

// storeEngine is where a broker keeps the works.
type storeEngine string

const (
	enginePebble   storeEngine = "pebble"
	enginePostgres storeEngine = "postgres"
)

func defaults() *config {
	c := &config{
		Listen: "0.0.0.0:8090", DataDir: "/var/lib/hawser-broker",
		MaxEventBytes: broker.DefaultMaxEventBytes, HandshakesPerAddress: listener.DefaultHandshakesPerAddress, DrainTimeout: cmdline.Duration(broker.DefaultDrainTimeout),
		Audit: audit.Off, Output: cmdline.NewOutput("127.0.0.1:8081"),
	}
	c.Store.Engine = enginePebble
	return c
}

func (c *config) addFlags(f *pflag.FlagSet) {
	cmdline.AddConfigFlag(f)
	f.StringVar(&c.Listen, "listen", c.Listen, "host:port for agents and sources (gRPC and MQTT 5)")
	f.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of the store; created when it does not exist. With PostgreSQL it keeps only the CAs that the hub reported")
	f.StringVar((*string)(&c.Store.Engine), "store-engine", string(c.Store.Engine), "where the works are kept: pebble, files of this broker in --data-dir; or postgres, a database that several brokers share")
	f.StringVar(&c.Store.URL, "store-url", c.Store.URL, "connection string of PostgreSQL, as postgres://hawser@db1.example.com,db2.example.com/hawser?sslrootcert=/etc/ca.crt; the default of sslmode is verify-full")
	f.StringVar(&c.Store.PasswordFile, "store-password-file", c.Store.PasswordFile, "file with the password for PostgreSQL, or with an access token; it is read at each connect")
	f.StringVar(&c.TLS.CertFile, "tls-cert-file", c.TLS.CertFile, "PEM file of the serving certificate")
	f.StringVar(&c.TLS.KeyFile, "tls-key-file", c.TLS.KeyFile, "PEM file of its key")
	f.StringVar(&c.TLS.ClientCAFile, "client-ca-file", c.TLS.ClientCAFile, "PEM file of the CAs that sign the certificates of agents and sources")
	f.StringVar(&c.TLS.AgentCAFile, "agent-ca-file", c.TLS.AgentCAFile, "PEM file of further CAs, which sign the certificates of agents and of no other role")
	f.BoolVar(&c.Insecure, "insecure", c.Insecure, "serve plaintext and trust the identity that each peer claims; only on a loopback address")
	f.IntVar(&c.MaxEventBytes, "max-event-bytes", c.MaxEventBytes, "largest event, more than 0; OCM clients receive at most 4 MiB")
	f.IntVar(&c.HandshakesPerAddress, "max-handshakes-per-address", c.HandshakesPerAddress, "TLS handshakes in progress of one address, with and without a session ticket, more than 0; more of them wait, a quarter of it bounds the failed ones per second. Set more if many distant agents share an address")
	f.StringSliceVar(&c.ProxyProtocolFrom, "proxy-protocol-from", c.ProxyProtocolFrom, "addresses (CIDR) of load balancers that send the PROXY protocol; other senders are not trusted")
	f.StringVar(&c.ServerConfig, "server-config", c.ServerConfig, "unchanged configuration file of Open Cluster Management's gRPC server; Hawser's settings override it, and docs/ocm.md has its keys")
	f.Var(&c.DrainTimeout, "drain-timeout", "timeout of a stop after SIGTERM, more than 0")
	f.StringVar((*string)(&c.Audit), "audit", string(c.Audit), "events written to the standard output, one line of JSON each: off, rejections (and actions of operators), or all (connections and publishes too)")
	c.Output.AddFlags(f)
}

// load reads the file that --config names, if any, and validates the result. Flags override the file; both
// override the file of OCM's gRPC server.
func (c *config) load(f *pflag.FlagSet) error {
	if err := cmdline.Load(f, c); err != nil {
		return err
	}
	if c.ServerConfig != "" {
		s, err := readServerConfig(c.ServerConfig)
		if err != nil {
			return err
		}
		if err := s.below(c, f); err != nil {
			return err
		}
	}
	return c.validate()
}

// validate returns all problems of the settings, each with its remedy.
func (c *config) validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		wrong("listen %q: use host:port, as 0.0.0.0:8090", c.Listen)
	}
	errs = append(errs, c.Output.Validate())
	if c.DataDir == "" {
		wrong("data-dir is empty: name the directory that keeps the works")
	}
	errs = append(errs, c.validateStore(), c.validateTLS(host))
	if err := c.Identities.Validate(); err != nil {
		wrong("identities: %w", err)
	}
	errs = append(errs, c.validateJoining())
	if err := c.ClusterQuota.Validate(); err != nil {
		wrong("clusterQuota: %w", err)
	}
	if c.ClusterQuota.Clusters != 0 {
		wrong("clusterQuota.clusters: a cluster has works and bytes; clusters is in the quota of a source")
	}
	if c.MaxEventBytes <= 0 {
		wrong("max-event-bytes %d: use a positive number of bytes", c.MaxEventBytes)
	}
	if c.HandshakesPerAddress <= 0 {
		wrong("max-handshakes-per-address %d: use a positive number", c.HandshakesPerAddress)
	}
	if _, err := c.proxies(); err != nil {
		errs = append(errs, err)
	}
	if c.DrainTimeout <= 0 {
		wrong("drain-timeout %s: use a positive duration, as 10s", c.DrainTimeout.String())
	}
	errs = append(errs, c.Audit.Validate())
	return errors.Join(errs...)
}

// validateStore checks the settings of the store.
func (c *config) validateStore() error {
	switch s := &c.Store; {
	case s.Engine != enginePebble && s.Engine != enginePostgres:
		return fmt.Errorf("store-engine %q: use %s or %s", s.Engine, enginePebble, enginePostgres)
	case s.Engine == enginePostgres && s.URL == "":
		return errors.New("store-url is empty: name the database, as postgres://hawser@db.example.com/hawser")
	case s.Engine == enginePebble && s.URL+s.PasswordFile != "":
		return fmt.Errorf("store-url and store-password-file are for PostgreSQL: add store-engine %s, or drop them", enginePostgres)
	}
	return nil
}

// knowsSource reports whether a client can have this source identity.
func (c *config) knowsSource(id string) bool {
	return slices.ContainsFunc(c.Identities, func(r identity.Rule) bool { return r.Role == identity.Source && r.Name == id })
}

// validateTokens checks that a source serves registration, because its hub verifies the tokens.
func (c *config) validateTokens() error {
	switch {
	case !c.Tokens.Enabled():
		return nil
	case c.Insecure:
		return errors.New("tokens cannot be verified with insecure, which trusts the identity that each peer claims: remove tokens")
	case c.Registration.Source == "":
		return errors.New("a source publishes the keys that verify tokens: name it in registration.source")
	}
	return c.Tokens.Validate()
}

// validateJoining checks the registration settings.
func (c *config) validateJoining() error {
	if err := c.validateTokens(); err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	if id := c.Registration.Source; id != "" && !c.Insecure && !c.knowsSource(id) {
		return fmt.Errorf("registration.source %q is no source: give it a rule in identities, or name one that has one", id)
	}
	return nil
}

// proxies returns the load balancers that send the PROXY protocol.
func (c *config) proxies() ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, s := range c.ProxyProtocolFrom {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("proxy-protocol-from %q: use addresses with a prefix length, as 10.0.0.0/24 or 10.0.0.7/32", s)
		}
		all = append(all, p)
	}
	return all, nil
}

// validateTLS requires three files, or plaintext on a loopback host.
func (c *config) validateTLS(host string) error {
	given := 0
	for _, f := range []string{c.TLS.CertFile, c.TLS.KeyFile, c.TLS.ClientCAFile} {
		if f != "" {
			given++
		}
	}
	switch {
	case c.Insecure && (given > 0 || c.TLS.AgentCAFile != ""):
		return errors.New("insecure and TLS files exclude each other: drop one of them")
	case c.Insecure && !cmdline.Loopback(host):
		return fmt.Errorf("insecure on %s: plaintext is allowed on a loopback address only, as --listen 127.0.0.1:8090", c.Listen)
	case !c.Insecure && given < 3:
		return errors.New("TLS needs tls-cert-file, tls-key-file and client-ca-file; to try things out on this machine, use --insecure --listen 127.0.0.1:8090")
	}
	return nil
}
