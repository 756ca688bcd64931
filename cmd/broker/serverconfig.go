package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/cmdline"
)

// serverConfig is the file of OCM's gRPC server, config.yaml of the ConfigMap grpc-server-config. Missing keys
// have Hawser's defaults, because OCM's defaults are paths of its own Deployment.
type serverConfig struct {
	CertFile     string `json:"tls_cert_file"`
	KeyFile      string `json:"tls_key_file"`
	ClientCAFile string `json:"client_ca_file"`
	Port         port   `json:"server_bind_port"`
	// MaxReceiveMessageSize bounds a message, in bytes: an event with its envelope.
	MaxReceiveMessageSize *int `json:"max_receive_message_size"`

	// unknown are unknown keys, which OCM ignores. idle are keys without a matching setting.
	unknown, idle []string
}

// port is a port number; OCM reads it as text.
type port uint16

// UnmarshalJSON reads 8090 and "8090".
func (p *port) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("port %s: use a number from 1 to 65535, as \"8090\"", b)
	}
	*p = port(n)
	return nil
}

// Reasons for which a key of OCM's gRPC server has no effect.
const (
	boundByItself = "the broker bounds what each peer may use by itself, see Limits of the port in docs/operations/limits.md"
	keptByItself  = "the broker manages its connections by itself: it pings, and ends them after 12 hours at most"
	alwaysTLS     = "the broker speaks TLS 1.2 and 1.3 with the cipher suites of Go"
	looksByItself = "the broker checks its TLS files twice a second"
)

// withoutEffect maps keys of OCM's gRPC server without a matching setting to the reason.
var withoutEffect = map[string]string{
	"tls_min_version": alwaysTLS, "tls_max_version": alwaysTLS, "cipher_suites": alwaysTLS,
	"max_concurrent_streams": boundByItself, "max_send_message_size": boundByItself, "write_buffer_size": boundByItself, "read_buffer_size": boundByItself,
	"connection_timeout": keptByItself, "max_connection_age": keptByItself, "client_min_ping_interval": keptByItself,
	"server_ping_interval": keptByItself, "server_ping_timeout": keptByItself, "permit_ping_without_stream": keptByItself,
	"cert_watch_interval": looksByItself,
}

// readServerConfig reads the file in --server-config.
func readServerConfig(path string) (*serverConfig, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("server-config: %w (omit it without such a file)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("server-config: %w", err)
	}
	s, err := parseServerConfig(b)
	if err != nil {
		return nil, fmt.Errorf("server-config %s: %w", path, err)
	}
	return s, nil
}

func parseServerConfig(b []byte) (*serverConfig, error) {
	s := &serverConfig{}
	if err := cmdline.DecodeLenient(b, s); err != nil {
		return nil, err
	}
	others, err := cmdline.UnknownKeys(b, s)
	if err != nil {
		return nil, err
	}
	for _, k := range others {
		if withoutEffect[k] != "" {
			s.idle = append(s.idle, k)
		} else {
			s.unknown = append(s.unknown, k)
		}
	}
	if n := s.MaxReceiveMessageSize; n != nil && *n <= beside {
		return nil, fmt.Errorf("max_receive_message_size %d: use more than %d, the largest size of what a message has besides the data of its event", *n, beside)
	}
	return s, nil
}

// beside is the part of a message that is not the event, in bytes.
const beside = 4<<20 - broker.DefaultMaxEventBytes

// setting is one key of the file: the equivalent flag, its value, and the value in use.
type setting struct{ key, flag, value, used string }

// settings returns the keys that are present.
func (s *serverConfig) settings(c *config) (all []setting) {
	add := func(key, flag, value, used string) {
		if value != "" {
			all = append(all, setting{key, flag, value, used})
		}
	}
	add("tls_cert_file", "tls-cert-file", s.CertFile, c.TLS.CertFile)
	add("tls_key_file", "tls-key-file", s.KeyFile, c.TLS.KeyFile)
	add("client_ca_file", "client-ca-file", s.ClientCAFile, c.TLS.ClientCAFile)
	if s.Port != 0 {
		add("server_bind_port", "listen", fmt.Sprint("0.0.0.0:", s.Port), c.Listen)
	}
	if s.MaxReceiveMessageSize != nil {
		add("max_receive_message_size", "max-event-bytes", strconv.Itoa(*s.MaxReceiveMessageSize-beside), strconv.Itoa(c.MaxEventBytes))
	}
	return all
}

// below applies the file with the lowest priority: below the loaded configuration file and the flags.
func (s *serverConfig) below(c *config, f *pflag.FlagSet) error {
	for _, x := range s.settings(c) {
		if flag := f.Lookup(x.flag); !flag.Changed {
			if err := flag.Value.Set(x.value); err != nil {
				return fmt.Errorf("server-config: %s: %w", x.key, err)
			}
		}
	}
	return cmdline.Load(f, c) // the configuration file overrides the value just set
}

// logSettings logs the keys of the file that have no effect, with the reason.
func (s *serverConfig) logSettings(c *config, log *slog.Logger) {
	idle := func(key, reason string) {
		log.Warn("a key in the configuration of OCM's gRPC server has no effect", "file", c.ServerConfig, "key", key, "reason", reason)
	}
	for _, x := range s.settings(c) {
		if x.value != x.used {
			idle(x.key, "the broker's own configuration, or a flag, overrides it: --"+x.flag+"="+x.used)
		}
	}
	for _, k := range s.idle {
		idle(k, withoutEffect[k])
	}
	if len(s.unknown) > 0 {
		log.Warn("unknown keys in the configuration of OCM's gRPC server are ignored", "file", c.ServerConfig, "keys", s.unknown)
	}
}

// logServerConfig calls logSettings for the configured file, if any.
func (c *config) logServerConfig(log *slog.Logger) error {
	if c.ServerConfig == "" {
		return nil
	}
	s, err := readServerConfig(c.ServerConfig)
	if err == nil {
		s.logSettings(c, log)
	}
	return err
}
