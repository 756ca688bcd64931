package mqtt

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// File is the configuration file of the mqtt driver of Open Cluster Management: broker and topics. The tags are
// its keys.
type File struct {
	// BrokerHost is the address of the broker: host:port, or a URL that begins with mqtts:// or wss://. mqtt:// and
	// ws:// need --insecure. Several brokers of one hub have commas between them. Required.
	BrokerHost string `json:"brokerHost"`
	// Username is the user name for brokers that require one, with or without a certificate.
	Username string `json:"username"`
	// Password is the password of the user.
	Password string `json:"password"`

	// KeepAlive is the number of seconds without a packet after which the client pings the broker.
	KeepAlive *uint16 `json:"keepAlive"`
	// DialTimeout is the timeout of connecting. More than 0.
	DialTimeout *cmdline.Duration `json:"dialTimeout"`
	// PubQoS is a number from 0 to 2. It is ignored: the QoS is always 1.
	PubQoS *int `json:"pubQoS"`
	// SubQoS is a number from 0 to 2. It is ignored: the QoS is always 1.
	SubQoS *int `json:"subQoS"`

	Topics topic.Set `json:"topics"`

	identity.Driver

	// Unknown lists the ignored keys, for the log. Open Cluster Management ignores unknown keys, so one file can
	// serve both.
	Unknown []string `json:"-"`
}

// ReadFile reads and checks a file. insecure allows plaintext to a broker on this machine.
func ReadFile(path string, insecure bool) (*File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := ParseFile(b)
	if err == nil {
		err = f.validate(insecure)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// ParseFile parses the content of a file, YAML or JSON, without validation.
func ParseFile(b []byte) (*File, error) {
	f := &File{}
	if err := cmdline.DecodeLenient(b, f); err != nil {
		return nil, err
	}
	var err error
	f.Unknown, err = cmdline.UnknownKeys(b, f)
	return f, err
}

// validate returns all problems of the file, each with its remedy.
func (f *File) validate(insecure bool) error {
	errs := []error{f.validateBroker(insecure), f.validateTLS(insecure), f.Topics.Validate()}
	if _, err := (transport.Proxy{URL: f.ProxyURL}).Server(); err != nil {
		errs = append(errs, err)
	}
	if f.Password != "" && f.HasToken() {
		errs = append(errs, errors.New("password and token exclude each other: a token is sent as the password, drop one of them"))
	}
	if f.Password != "" && f.Username == "" {
		errs = append(errs, errors.New("password: needs a username, without which brokers reject it"))
	}
	if t := f.DialTimeout; t != nil && *t <= 0 {
		errs = append(errs, fmt.Errorf("dialTimeout %s: use a positive duration, such as 60s", t))
	}
	for key, q := range map[string]*int{"pubQoS": f.PubQoS, "subQoS": f.SubQoS} {
		if q != nil && (*q < 0 || *q > 2) {
			errs = append(errs, fmt.Errorf("%s %d: use 1", key, *q))
		}
	}
	return errors.Join(errs...)
}

func (f *File) validateBroker(insecure bool) error {
	for _, broker := range transport.SplitAddresses(f.BrokerHost) {
		e, secure, err := parseBroker(broker)
		switch {
		case err != nil:
			return fmt.Errorf("brokerHost %.200q: use host:port, such as broker.example.com:8883, or a URL that begins with mqtts:// or wss://", broker)
		case insecure && !cmdline.Loopback(e.host):
			return fmt.Errorf("--insecure to %s: plaintext is allowed to a loopback address only, such as 127.0.0.1:1883", broker)
		case secure != nil && *secure == insecure:
			return fmt.Errorf("brokerHost %s: use mqtts:// or wss://, and mqtt:// or ws:// with --insecure only", broker)
		}
	}
	return nil
}

func (f *File) validateTLS(insecure bool) error {
	if insecure && f.HasTLS() {
		return errors.New("--insecure and TLS settings exclude each other: drop one of them")
	}
	if f.HasCert() != f.HasKey() {
		return errors.New("a client certificate needs its key and a key its certificate: set clientCertFile and clientKeyFile, or clientCertData and clientKeyData")
	}
	return nil
}

// Load reads a file and returns the options of a client for NewDialer. The topics must be those of the client.
// For each connection, password, certificates and CA are read again from this file and the files that it names.
// For all other keys use [NewReloadingDialer]. A connection is encrypted unless insecure is set, also with a CA alone.
func Load(path string, filter transport.Filter, insecure bool, log *slog.Logger) (Options, *File, error) {
	f, err := ReadFile(path, insecure)
	if err != nil {
		return Options{}, nil, err
	}
	if _, err := (routes{set: f.Topics}).filters(filter, false); err != nil {
		return Options{}, nil, fmt.Errorf("%s: %w", path, errors.Unwrap(err))
	}
	for key, q := range map[string]*int{"pubQoS": f.PubQoS, "subQoS": f.SubQoS} {
		if q != nil && *q != qos {
			log.Warn("another quality of service is configured than what is used, which is 1", "file", path, "key", key, "value", *q)
		}
	}
	o := Options{Broker: f.BrokerHost, ClientID: ClientID(filter), Topics: f.Topics, Insecure: insecure, Log: log}
	o.Proxy = transport.Proxy{URL: f.ProxyURL, CAFile: f.ProxyCAFile}
	if f.KeepAlive != nil {
		o.KeepAlive = time.Duration(*f.KeepAlive) * time.Second
	}
	if f.DialTimeout != nil {
		o.DialTimeout = time.Duration(*f.DialTimeout)
	}
	secrets := &secrets{path: path, insecure: insecure, log: log}
	if err := secrets.use(f); err != nil {
		return Options{}, nil, fmt.Errorf("%s: %w", path, err)
	}
	o.Login = secrets.login
	if !insecure {
		o.TLS = secrets.config
	}
	return o, f, nil
}

// NewReloadingDialer returns a Dialer that reads the client's file again for each connection. complete gets the options of
// each new Dialer, and may reject the file.
func NewReloadingDialer(path string, filter transport.Filter, insecure bool, log *slog.Logger, complete func(*Options, *File) error) (*transport.ReloadingDialer[*File], error) {
	return transport.NewReloadingDialer(
		func() (*File, error) { return ReadFile(path, insecure) },
		func(*File) (transport.Dialer, error) {
			o, f, err := Load(path, filter, insecure, log)
			if err != nil {
				return nil, err
			}
			if err := complete(&o, f); err != nil {
				return nil, err
			}
			return NewDialer(o)
		},
		func(err error) {
			log.Error("the configuration of the broker connection is invalid; the previous one stays in use", "error", err)
		})
}

// Watch watches a file and the files that it names.
func Watch(path string, insecure bool, r prometheus.Registerer, log *slog.Logger) (*identity.Watch, error) {
	return identity.NewWatch(identity.WatchConfig{
		Read: func() (identity.Driver, error) {
			f, err := ReadFile(path, insecure)
			if err != nil {
				return identity.Driver{}, err
			}
			return f.Driver, nil
		},
		Also: []string{path}, Log: log, Registry: r,
	})
}

// secrets are the values of a file that are read again for each connection. An unusable value is logged, and
// the previous one stays in use.
type secrets struct {
	path     string
	insecure bool
	log      *slog.Logger

	mu    sync.Mutex // also held while tls runs
	file  *File
	files identity.Files // files read by tls, if there are any
	tls   func() *tls.Config
}

func (s *secrets) login() Login {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	token, err := s.file.Bearer()
	if err != nil {
		s.log.Error("the token for the broker cannot be read", "error", err)
	}
	return Login{User: s.file.Username, Password: cmp.Or(token, s.file.Password)}
}

func (s *secrets) config() *tls.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	return s.tls()
}

// refresh reads the file again.
func (s *secrets) refresh() {
	f, err := ReadFile(s.path, s.insecure)
	if err == nil && !reflect.DeepEqual(f, s.file) {
		err = s.use(f)
	}
	if err != nil {
		s.log.Error("the configuration of the broker connection is invalid; the previous one stays in use", "error", err)
	}
}

// use applies the secrets of f.
func (s *secrets) use(f *File) error {
	files, inFiles := f.Files()
	switch {
	case s.insecure:
	case inFiles:
		if s.tls != nil && files == s.files {
			break // tls reads the certificates itself
		}
		config, err := files.TLS(func(err error) { s.log.Error("tls files", "error", err) })
		if err != nil {
			return err
		}
		s.files, s.tls = files, config
	default:
		config, err := f.Config()
		if err != nil {
			return err
		}
		s.files, s.tls = identity.Files{}, func() *tls.Config {
			if c, err := f.Config(); err == nil { // files that it names may have changed
				config = c
			} else {
				s.log.Error("tls files changed and cannot be used, the previous ones stay in use", "error", err)
			}
			return config
		}
	}
	s.file = f
	return nil
}
