package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// remote is how a verb reaches the broker.
type remote struct {
	broker, ca, cert, key string
	insecure              bool
	timeout               time.Duration
}

// flags adds those of the connection. Each but --timeout may come from the
// environment, so that a terminal session names them once.
func (r *remote) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.broker, "broker", os.Getenv("HAWSER_BROKER"), "host:port of the broker (or $HAWSER_BROKER)")
	f.StringVar(&r.ca, "ca", os.Getenv("HAWSER_CA"), "CA that signed the broker's certificate (or $HAWSER_CA)")
	f.StringVar(&r.cert, "cert", os.Getenv("HAWSER_CERT"), "certificate of an operator or viewer (or $HAWSER_CERT)")
	f.StringVar(&r.key, "key", os.Getenv("HAWSER_KEY"), "its private key (or $HAWSER_KEY)")
	f.BoolVar(&r.insecure, "insecure", false, "plaintext, to a broker on this machine only")
	f.DurationVar(&r.timeout, "timeout", 30*time.Second, "how long to wait for the broker")
}

// check says what is wrong with the flags.
func (r *remote) check() error {
	switch {
	case r.broker == "":
		return errors.New("--broker is not set: name the broker as host:port")
	case r.timeout <= 0:
		return fmt.Errorf("--timeout %s: the broker needs some time to answer", r.timeout)
	case r.insecure && r.ca+r.cert+r.key != "":
		return errors.New("--insecure and certificates exclude each other: drop one of them")
	case r.insecure && !onLoopback(r.broker):
		return fmt.Errorf("--broker %s is not a loopback address: plaintext is allowed only there", r.broker)
	case !r.insecure && (r.cert == "" || r.key == ""):
		return errors.New("--cert and --key are not set: the broker tells only operators and viewers")
	}
	return nil
}

func (r *remote) credentials() (credentials.TransportCredentials, error) {
	if r.insecure {
		return insecure.NewCredentials(), nil
	}
	return identity.Files{CA: r.ca, Cert: r.cert, Key: r.key}.Client("", func(error) {})
}

// call connects and calls do, for so long as the broker may take. Errors of the broker come
// back with its hint.
func (r *remote) call(cmd *cobra.Command, do func(context.Context, hawserv1.InspectionServiceClient) error) error {
	return r.connected(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient) error {
		ctx, cancel := context.WithTimeout(ctx, r.timeout)
		defer cancel()
		return do(ctx, c)
	})
}

// connected is call without an end.
func (r *remote) connected(cmd *cobra.Command, do func(context.Context, hawserv1.InspectionServiceClient) error) (err error) {
	if err := r.check(); err != nil {
		return usageOf(cmd, err)
	}
	creds, err := r.credentials()
	if err != nil {
		return err
	}
	cc, err := grpc.NewClient("passthrough:///"+r.broker, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cc.Close()) }()
	err = do(cmd.Context(), hawserv1.NewInspectionServiceClient(cc))
	var hinted interface{ Hint() string }
	if err == nil || errors.As(err, &hinted) {
		return err
	}
	e := transportgrpc.FromStatus(err)
	if e.Hint == "" {
		return e
	}
	told := e.Hint
	e.Hint = ""
	return hint(e, "%s", told)
}

func onLoopback(target string) bool {
	host, _, err := net.SplitHostPort(target)
	return err == nil && cmdline.Loopback(host)
}

// paged calls f with each message of a list, page by page; list asks for the page behind a
// token. Each page may take so long, the time included that a broker asks to wait at which too many
// list.
func paged[T any](ctx context.Context, timeout time.Duration, list func(ctx context.Context, token string) (grpc.ServerStreamingClient[T], error), f func(*T) error) error {
	for token := ""; ; {
		next := ""
		err := bounded(ctx, timeout, func(ctx context.Context) error {
			s, err := list(ctx, token)
			return received(s, err, func(m *T) error {
				if l, ok := any(m).(interface{ GetNextPageToken() string }); ok && l.GetNextPageToken() != "" {
					next = l.GetNextPageToken()
					return nil
				}
				return f(m)
			})
		})
		if err != nil || next == "" {
			return err
		}
		token = next
	}
}

// bounded calls f, again where the broker is overloaded: it says so before it sends anything.
func bounded(ctx context.Context, timeout time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil || status.Code(err) != codes.ResourceExhausted {
			return err
		}
		wait := time.NewTimer(max(transportgrpc.FromStatus(err).Delay, 100*time.Millisecond))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return err
		}
	}
}

// received calls f with each message of a stream.
func received[T any](s grpc.ServerStreamingClient[T], err error, f func(*T) error) error {
	if err != nil {
		return err
	}
	for {
		m, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := f(m); err != nil {
			return err
		}
	}
}

// asJSON writes one message as a line of JSON.
func asJSON(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	// The library varies its white space; a line for scripts does not.
	var compact json.RawMessage = b
	line, err := json.Marshal(compact)
	if err != nil {
		return err
	}
	line = bytes.Replace(line, []byte(`,"next_page_token":""`), nil, 1) // of the list, not of what is listed
	_, err = fmt.Fprintf(w, "%s\n", line)
	return err
}
