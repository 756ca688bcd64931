package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/doctor"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// remote configures the connection of a verb to the broker.
type remote struct {
	env                               Env
	config, contextName               string
	broker, ca, cert, key, serverName string
	proxy                             transport.Proxy
	insecure                          bool
	// warned: the warning about a renamed flag was printed.
	warned bool
	// overMQTT: the verb can use a broker over MQTT, too.
	overMQTT bool
	// quiet: do not print warnings of the broker, for instance in a completion.
	quiet   bool
	timeout time.Duration
}

// flags adds the flags of the connection. Each except --timeout may come from the environment or a context.
func (r *remote) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.config, "config", "", "file with contexts (or $"+envConfig+"; else hawser/config.yaml in the directory for configuration, as ~/.config)")
	f.StringVar(&r.contextName, "broker-context", "", "context of that file; the environment and its currentContext are then ignored")
	f.StringVar(&r.contextName, "context", "", "former name of --broker-context")
	f.StringVar(&r.broker, "broker", "", "host:port of the broker, or several with commas between them (or $HAWSER_BROKER)")
	f.StringVar(&r.ca, "ca", "", "CA that signed the broker's certificate (or $HAWSER_CA)")
	f.StringVar(&r.cert, "cert", "", "certificate of an operator or viewer (or $HAWSER_CERT)")
	f.StringVar(&r.key, "key", "", "its private key (or $HAWSER_KEY)")
	f.StringVar(&r.serverName, "server-name", "", "name that the broker's certificate has, if it is not the host of --broker (or $HAWSER_SERVER_NAME)")
	f.StringVar(&r.proxy.URL, "proxy", "", "HTTP proxy to the broker, as http://proxy.example:3128, or "+transport.NoProxy+" (or $HAWSER_PROXY; else $HTTPS_PROXY and $NO_PROXY)")
	f.StringVar(&r.proxy.CAFile, "proxy-ca", "", "CA that signed the certificate of a proxy with https:// (or $HAWSER_PROXY_CA)")
	f.BoolVar(&r.insecure, "insecure", false, "plaintext, to a broker on this machine only")
	// In all other verbs --context is one of the kubeconfig.
	if err := f.MarkHidden("context"); err != nil {
		panic(err) // no such flag: a programming error
	}
	cmd.MarkFlagsMutuallyExclusive("broker-context", "context")
	complete(cmd, "broker-context", r.contextNames)
	complete(cmd, "context", r.contextNames)
	f.DurationVar(&r.timeout, "timeout", 30*time.Second, "timeout of the broker's answer")
}

// ready completes the flags and returns an error for invalid ones.
func (r *remote) ready(cmd *cobra.Command) error {
	if cmd.Flags().Changed("context") && !r.warned {
		r.warned = true
		if err := printf(r.env.Stderr, "warning: --context is a context of the kubeconfig elsewhere: name a broker with --broker-context\n"); err != nil {
			return err
		}
	}
	if err := r.resolve(cmd.Flags()); err != nil {
		return usageOf(cmd, err)
	}
	if err := r.check(); err != nil {
		return usageOf(cmd, err)
	}
	return nil
}

// check returns an error for invalid flags.
func (r *remote) check() error {
	addresses, err := r.addresses()
	if err != nil {
		return err
	}
	switch _, err := r.proxy.Server(); {
	case err != nil:
		return err
	case r.timeout <= 0:
		return fmt.Errorf("--timeout %s: the broker needs some time to answer", r.timeout)
	case r.insecure && r.ca+r.cert+r.key+r.serverName != "":
		return errors.New("--insecure and certificates exclude each other: drop one of them")
	case r.insecure && !cmdline.LoopbackOnly(addresses):
		return fmt.Errorf("--broker %s is not a loopback address: plaintext is allowed only there", r.broker)
	}
	return r.checkCert()
}

// addresses returns host:port of each broker.
func (r *remote) addresses() ([]string, error) {
	switch {
	case r.broker == "":
		return nil, errors.New("--broker is not set: name the broker as host:port, or use a context (--broker-context)")
	case strings.Contains(r.broker, "://") && !r.overMQTT:
		return nil, fmt.Errorf("--broker %s: only hawser doctor reaches a broker over MQTT; use host:port, as broker.example:8090", r.broker)
	case !r.isMQTT():
		list, err := transport.Addresses(r.broker)
		if err != nil {
			return nil, fmt.Errorf("--broker %w", err)
		}
		return list, nil
	}
	list := transport.SplitAddresses(r.broker)
	for i, broker := range list {
		var err error
		if list[i], _, err = transportmqtt.Address(broker); err != nil {
			return nil, fmt.Errorf("--broker %s: use host:port for gRPC, or a URL that begins with mqtts:// or wss:// for MQTT", broker)
		}
	}
	return list, nil
}

// checkCert returns an error about certificate and key.
func (r *remote) checkCert() error {
	switch simple := strings.HasPrefix(r.broker, "mqtt://") || strings.HasPrefix(r.broker, "ws://"); {
	case r.isMQTT() && r.insecure != simple:
		return fmt.Errorf("--broker %s: use mqtts:// or wss://, and mqtt:// or ws:// with --insecure only", r.broker)
	case r.isMQTT() && (r.cert == "") != (r.key == ""):
		return errors.New("--cert and --key belong together: set both or none")
	case !r.insecure && !r.isMQTT() && (r.cert == "" || r.key == ""):
		return errors.New("--cert and --key are not set: the broker answers only operators and viewers")
	}
	return nil
}

// call connects and calls do, within the timeout. Errors of the broker keep its hint. If another replica of the broker
// has to answer, it connects again, because the address does not show which replica it reaches.
func (r *remote) call(cmd *cobra.Command, do func(context.Context, hawserv1.AdminServiceClient) error) error {
	for end := time.Now().Add(r.timeout); ; {
		err := r.connected(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient) error {
			ctx, cancel := context.WithTimeout(ctx, r.timeout)
			defer cancel()
			return do(ctx, c)
		})
		e, ok := errors.AsType[*transport.Error](err)
		if !ok || e.Next != transport.NextUseAnotherServer || time.Now().After(end) || !taskgroup.Sleep(cmd.Context(), replicaPause) {
			return err
		}
	}
}

// replicaPause is the pause before a command connects again to reach another replica.
const replicaPause = 200 * time.Millisecond

// agreed calls look, which returns the planned action, and performs it after the user has confirmed it. The
// time of the answer does not count towards the timeout. With --dry-run it calls dry instead.
func (r *remote) agreed(cmd *cobra.Command, c *consent, look func(context.Context, hawserv1.AdminServiceClient) (what string, err error), dry func() error,
	do func(context.Context, hawserv1.AdminServiceClient) error,
) error {
	what := ""
	err := r.call(cmd, func(ctx context.Context, client hawserv1.AdminServiceClient) (err error) {
		what, err = look(ctx, client)
		return err
	})
	switch {
	case err != nil:
		return err
	case c.dryRun:
		return dry()
	}
	if err := c.get(cmd.Context(), cmd, r.env, what); err != nil {
		return err
	}
	return r.call(cmd, do)
}

// connected is call without a timeout.
func (r *remote) connected(cmd *cobra.Command, do func(context.Context, hawserv1.AdminServiceClient) error) (err error) {
	if err := r.ready(cmd); err != nil {
		return err
	}
	conn, err := r.connect(cmd.Context())
	if err != nil {
		return r.diagnose(cmd.Context(), err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return connectionError(do(cmd.Context(), hawserv1.NewAdminServiceClient(&warner{ClientConnInterface: conn.Calls(), out: r.warnings(), printed: map[string]bool{}})))
}

// warnings is the writer for the broker's warnings.
func (r *remote) warnings() io.Writer {
	if r.quiet {
		return io.Discard
	}
	return r.env.Stderr
}

// isMQTT reports whether the broker is given as a URL and the verb supports that.
func (r *remote) isMQTT() bool { return r.overMQTT && strings.Contains(r.broker, "://") }

func (r *remote) files() identity.Files { return identity.Files{CA: r.ca, Cert: r.cert, Key: r.key} }

func (r *remote) connect(ctx context.Context) (*transportgrpc.Conn, error) {
	o := transportgrpc.Options{Target: r.broker, Insecure: r.insecure, DialTimeout: min(r.timeout, transportgrpc.DefaultDialTimeout), Proxy: r.proxy, Log: slog.New(slog.DiscardHandler)}
	if !r.insecure {
		var err error
		if o.Credentials, err = r.files().Client(r.serverName, func(error) {}); err != nil {
			return nil, err
		}
	}
	d, err := transportgrpc.NewDialer(o)
	if err != nil {
		return nil, err
	}
	return d.Connect(ctx)
}

// diagnosisStep bounds each diagnosis step after a failed connection.
const diagnosisStep = 5 * time.Second

// way returns the path to the broker for a diagnosis.
func (r *remote) way(step time.Duration) doctor.Path {
	return doctor.Path{Brokers: doctor.GRPC(r.broker, r.serverName), Identity: identity.Driver{CAFile: r.ca, ClientCertFile: r.cert, ClientKeyFile: r.key, ProxyURL: r.proxy.URL, ProxyCAFile: r.proxy.CAFile}, Insecure: r.insecure, Timeout: min(r.timeout, step), Now: r.env.Now}
}

// diagnose finds the step at which a connection fails. If no step fails any more, it returns the connection's
// error.
func (r *remote) diagnose(ctx context.Context, failed error) error {
	var p *doctor.StepError
	if err := r.way(diagnosisStep).Walk(ctx, func(string, string) {}); errors.As(err, &p) {
		failed = p
	}
	return fmt.Errorf("no connection to %s: %w", r.broker, connectionError(failed))
}

// connectionError returns the error of a connection or call with the remedy as its hint.
func connectionError(err error) error {
	if err == nil || errors.As(err, new(interface{ Hint() string })) {
		return err
	}
	e := transportgrpc.FromStatus(err)
	e.Message = oneLine(e.Message)
	if e.Hint == "" {
		return e
	}
	advice := oneLine(e.Hint)
	e.Hint = ""
	return hint(e, "%s", advice)
}
