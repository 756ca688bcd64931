package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/doctor"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// doctorFlags are the flags of hawser doctor beside those of the connection.
type doctorFlags struct {
	remote
	user, passwordFile, kubeconfig string
}

func newDoctor(env Env) *cobra.Command {
	d := doctorFlags{remote: remote{env: env, overMQTT: true}}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the connection to a broker step by step, and report the first failure",
		Long: `Check the connection to a broker step by step, and report the first failure.

The steps are files, name, proxy, TCP, TLS, clock, identity, authorization, round trip
and health. Health means that the broker accepts events, and that its sources, such as
hub-source, are connected. With --kubeconfig it then checks the API of a hub or of a
managed cluster, its definitions, and whether you may read works there.

It stops at the first step that fails and prints the remedy, in a form that you can
forward to the network team. It detects a proxy that inspects TLS. A broker that is named
as mqtts://host:port or wss://host:port/path (mqtt:// and ws:// with --insecure) is
checked over MQTT, also with a user name. Operators have no rights there, so the check
ends with a ping.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.ready(cmd); err != nil {
				return err
			}
			w := d.way(d.timeout)
			w.Calls = []doctor.Call{{Name: "authorization", Make: mayLook}, {Name: "round trip", Make: roundTrip}, {Name: "health", Make: healthy}}
			if d.isMQTT() {
				o := transportmqtt.Options{Broker: d.broker, ClientID: "hawser-doctor", Topics: noTopics, Proxy: d.proxy, Log: slog.New(slog.DiscardHandler)}
				login, err := d.login()
				if err != nil {
					return &doctor.StepError{Step: "files", What: err.Error(), Advice: "check the path, and that this user may read the file", Err: err}
				}
				o.Login = func() transportmqtt.Login { return login }
				w.Brokers, w.Calls = doctor.MQTT(o), []doctor.Call{{Name: "round trip", Make: ping}}
			}
			if d.kubeconfig != "" {
				for _, s := range d.api().Steps() {
					w.Calls = append(w.Calls, doctor.Step(s.Name, s.Look))
				}
			}
			return w.Report(cmd.Context(), env.Stdout)
		},
	}
	d.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&d.user, "user", "", "user name towards an MQTT broker")
	f.StringVar(&d.passwordFile, "password-file", "", "file with the password of --user")
	f.StringVar(&d.kubeconfig, "kubeconfig", "", "kubeconfig of a hub or of a managed cluster, to check that too")
	return cmd
}

// noTopics are valid topics: the check neither publishes nor subscribes.
var noTopics = topic.Set{SourceEvents: "sources/+/clusters/+/sourceevents", AgentEvents: "sources/+/clusters/+/agentevents"}

func (d *doctorFlags) login() (transportmqtt.Login, error) {
	l := transportmqtt.Login{User: d.user}
	if d.passwordFile == "" {
		return l, nil
	}
	text, err := os.ReadFile(d.passwordFile)
	l.Password = strings.TrimRight(string(text), "\r\n")
	return l, err
}

// ping measures the response time of an MQTT broker.
func ping(ctx context.Context, c transport.Conn) (string, error) {
	over, ok := c.(*transportmqtt.Conn)
	if !ok {
		return "", errors.New("this is no connection over MQTT")
	}
	began := time.Now()
	if err := over.Ping(ctx); err != nil {
		return "", err
	}
	return doctor.DescribeLatency(began), nil
}

// api returns the checks of the API of a hub or of a managed cluster.
func (d *doctorFlags) api() kubeconfig.Check {
	works := schema.GroupVersionResource{Group: workv1.GroupName, Version: workv1.GroupVersion.Version, Resource: "manifestworks"}
	applied := appliedwork.Resource
	read := []string{"get", "list"}
	return kubeconfig.Check{
		Name: "hub or cluster", Definitions: []schema.GroupVersionResource{works, applied},
		Load:   func() (*rest.Config, error) { return kubeconfig.Load(d.kubeconfig, "kubeconfig") },
		Rights: []kubeconfig.Right{{Verbs: read, Group: works.Group, Resource: works.Resource}, {Verbs: read, Group: applied.Group, Resource: applied.Resource}},
		Grant:  "its administrator must install Hawser there (hawser install hub, hawser install cluster) and allow you to read works",
	}
}

// mayLook makes a call that all operators and viewers may make.
func mayLook(ctx context.Context, c transport.Conn) (string, error) {
	_, err := queryDenials(ctx, c)
	if transport.CodeOf(err) == transport.CodeDenied {
		err = hint(err, "the broker knows this certificate, and everything up to here works; only an operator or a viewer may look into the broker")
	}
	return "an operator or a viewer", err
}

// roundTrip measures the same call on the established connection.
func roundTrip(ctx context.Context, c transport.Conn) (string, error) {
	began := time.Now()
	if _, err := queryDenials(ctx, c); err != nil {
		return "", err
	}
	return doctor.DescribeLatency(began), nil
}

// healthy fails if the broker sends warnings.
func healthy(ctx context.Context, c transport.Conn) (string, error) {
	warnings, err := queryDenials(ctx, c)
	if err != nil {
		return "", err
	}
	if len(warnings) > 0 {
		return "", errors.New(strings.Join(warnings, "; "))
	}
	return "it accepts events, and its sources are connected", nil
}

// queryDenials makes the smallest call that all operators and viewers may make, and returns the broker's
// warnings.
func queryDenials(ctx context.Context, c transport.Conn) (warnings []string, err error) {
	over, ok := c.(*transportgrpc.Conn)
	if !ok {
		return nil, errors.New("operators can query the broker over gRPC only")
	}
	s, err := hawserv1.NewAdminServiceClient(over.Calls()).ListDenials(ctx, &hawserv1.ListDenialsRequest{})
	if err := connectionError(received(s, err, func(*hawserv1.ListDenialsResponse) error { return nil })); err != nil {
		return nil, err
	}
	header, err := s.Header()
	return header.Get(transportgrpc.WarningHeader), connectionError(err)
}
