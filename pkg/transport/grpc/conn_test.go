package grpc_test

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/grpc"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

type stream = ggrpc.ServerStreamingServer[cloudeventsv1.CloudEvent]

// dial serves s on loopback and connects to it with the options o.
func dial(t *testing.T, s *service, o grpc.Options) transport.Conn {
	t.Helper()
	l := freePort(t)
	serve(t, l, s)
	o.Target, o.Insecure = l.Addr().String(), true
	c, err := newDialer(t, o).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// accepting returns a service that sends the header and runs then.
func accepting(header metadata.MD, then func(stream) error) *service {
	return &service{subscribe: func(_ *cloudeventsv1.SubscriptionRequest, out stream) error {
		if err := out.SendHeader(metadata.Join(metadata.Pairs(codec.HeaderSubscriptionID, "s"), header)); err != nil {
			return err
		}
		return then(out)
	}}
}

func hang(out stream) error {
	<-out.Context().Done()
	return out.Context().Err()
}

func subscribe(ctx context.Context, c transport.Conn, h transport.Handler) (accepted transport.Accepted, err error) {
	err = c.Subscribe(ctx, transport.Subscription{Filter: transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles}},
		func(a transport.Accepted) { accepted = a }, h)
	return accepted, err
}

func wantCode(t *testing.T, err error, code transport.Code, text string) {
	t.Helper()
	var e *transport.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), text) {
		t.Fatalf("got %v, want code %v and %q", err, code, text)
	}
}

func wireEvent(t *testing.T, data []byte) *cloudeventsv1.CloudEvent {
	t.Helper()
	e := newEvent()
	e.DataEncoded = data
	p, err := codec.ToProto(e)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func heartbeat() *cloudeventsv1.CloudEvent {
	return &cloudeventsv1.CloudEvent{Id: "h", SpecVersion: "1.0", Type: codec.TypeHeartbeat}
}

func TestPublish_TimesOut(t *testing.T) {
	c := dial(t, &service{publish: func(ctx context.Context, _ *cloudeventsv1.PublishRequest) (*emptypb.Empty, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}, grpc.Options{PublishTimeout: 30 * time.Millisecond})
	_, err := c.Publish(t.Context(), newEvent(), "")
	wantCode(t, err, transport.CodeDeadline, "")
}

// TestPublish_SizeLimit: an event above the limit of either side gets CodeTooLarge.
func TestPublish_SizeLimit(t *testing.T) {
	big := newEvent()
	big.DataEncoded = make([]byte, 5000)

	t.Run("of the client", func(t *testing.T) {
		c := dial(t, &service{}, grpc.Options{MaxEventBytes: 4000})
		_, err := c.Publish(t.Context(), big, "")
		wantCode(t, err, transport.CodeTooLarge, "at most 4000")
		if transport.Retryable(err) {
			t.Error("the error calls for a retry")
		}
		if _, err := c.Publish(t.Context(), newEvent(), ""); err != nil {
			t.Errorf("the next event: %v", err)
		}
	})
	t.Run("of the broker, announced", func(t *testing.T) {
		c := dial(t, accepting(metadata.Pairs(codec.HeaderMaxEventBytes, "3000"), func(stream) error { return nil }), grpc.Options{})
		accepted, err := subscribe(t.Context(), c, nil)
		wantCode(t, err, transport.CodeUnavailable, "")
		if accepted.MaxEventBytes != 3000 {
			t.Errorf("got limit %d", accepted.MaxEventBytes)
		}
		_, err = c.Publish(t.Context(), big, "")
		wantCode(t, err, transport.CodeTooLarge, "at most 3000")
	})
	t.Run("of the broker's library", func(t *testing.T) {
		l := freePort(t)
		serveLimited(t, l, 1000)
		c, err := newDialer(t, grpc.Options{Target: l.Addr().String(), Insecure: true}).Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Publish(t.Context(), big, "")
		wantCode(t, err, transport.CodeTooLarge, "raise the largest event size")
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("at the limit", func(t *testing.T) {
		b, err := codec.Marshal(big)
		if err != nil {
			t.Fatal(err)
		}
		c := dial(t, &service{}, grpc.Options{MaxEventBytes: len(b)})
		if _, err := c.Publish(t.Context(), big, ""); err != nil {
			t.Errorf("an event as large as allowed: %v", err)
		}
	})
}

func TestSubscribe_ReceiveLimit(t *testing.T) {
	send := func(size int) *service {
		return accepting(nil, func(out stream) error {
			return errors.Join(out.Send(wireEvent(t, make([]byte, size))), status.Error(codes.NotFound, "done"))
		})
	}
	// The event exceeds the library's default of 4 MiB, which breaks OCM clients.
	_, err := subscribe(t.Context(), dial(t, send(6<<20), grpc.Options{}), func(context.Context, codec.Event) error { return nil })
	wantCode(t, err, transport.CodeNotFound, "done")

	_, err = subscribe(t.Context(), dial(t, send(5000), grpc.Options{MaxEventBytes: 3000}), nil)
	wantCode(t, err, transport.CodeTooLarge, "raise the largest event size")
}

// TestSubscribe_CanceledByProxy: only a cancellation by the caller's context ends without a reconnect.
func TestSubscribe_CanceledByProxy(t *testing.T) {
	for name, s := range map[string]*service{
		"stream": accepting(nil, func(stream) error { return status.Error(codes.Canceled, "reset") }),
		"header": {subscribe: func(*cloudeventsv1.SubscriptionRequest, stream) error { return status.Error(codes.Canceled, "reset") }},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := subscribe(t.Context(), dial(t, s, grpc.Options{}), nil)
			wantCode(t, err, transport.CodeUnavailable, "reset")
			if !transport.Retryable(err) {
				t.Error("the error does not call for a retry")
			}
		})
	}
}

func TestPublish_CanceledByProxy(t *testing.T) {
	c := dial(t, &service{publish: func(context.Context, *cloudeventsv1.PublishRequest) (*emptypb.Empty, error) {
		return nil, status.Error(codes.Canceled, "reset")
	}}, grpc.Options{})
	_, err := c.Publish(t.Context(), newEvent(), "")
	wantCode(t, err, transport.CodeUnavailable, "reset")
}

func TestSubscribe_Header(t *testing.T) {
	refuse := func(header metadata.MD, err error) *service {
		return &service{subscribe: func(_ *cloudeventsv1.SubscriptionRequest, out stream) error {
			if failure := out.SendHeader(header); failure != nil {
				return failure
			}
			return err
		}}
	}
	id := codec.HeaderSubscriptionID
	for name, tc := range map[string]struct {
		service *service
		code    transport.Code
		text    string
	}{
		"refused": {&service{subscribe: func(*cloudeventsv1.SubscriptionRequest, stream) error {
			return status.Error(codes.PermissionDenied, "not yours")
		}}, transport.CodeDenied, "not yours"},
		"refused after a header": {
			refuse(metadata.Pairs("x", "y"), status.Error(codes.Unauthenticated, "unknown identity")),
			transport.CodeUnauthenticated, "unknown identity",
		},
		"ended after a header": {refuse(metadata.Pairs("x", "y"), nil), transport.CodeInvalid, "check the address"},
		"two ids":              {refuse(metadata.Pairs(id, "a", id, "b"), nil), transport.CodeInvalid, "no single"},
		"event without header": {&service{subscribe: func(_ *cloudeventsv1.SubscriptionRequest, out stream) error {
			return errors.Join(out.Send(heartbeat()), hang(out))
		}}, transport.CodeInvalid, "check the address"},
		"no such service": {nil, transport.CodeInvalid, "check host and port"},
	} {
		t.Run(name, func(t *testing.T) {
			var c transport.Conn
			if tc.service != nil {
				c = dial(t, tc.service, grpc.Options{})
			} else {
				c = dialEmptyServer(t)
			}
			_, err := subscribe(t.Context(), c, nil)
			wantCode(t, err, tc.code, tc.text)
		})
	}
}

func TestSubscribe_OCMAnswer(t *testing.T) {
	for name, header := range map[string]metadata.MD{
		"ocm":             nil,
		"earlier version": metadata.Pairs(codec.HeaderProtocol, "1"),
		"later version":   metadata.Pairs(codec.HeaderProtocol, "3", codec.HeaderMaxEventBytes, "many"),
		"odd limit":       metadata.Pairs(codec.HeaderMaxEventBytes, "-5"),
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, accepting(header, func(stream) error { return nil }), grpc.Options{})
			accepted, err := subscribe(t.Context(), c, nil)
			wantCode(t, err, transport.CodeUnavailable, "ended the subscription")
			if accepted.Broker == "" {
				t.Error("the used address is missing")
			}
			accepted.Broker = ""
			if want := (transport.Accepted{SubscriptionID: "s", Transport: transport.GRPC}); !reflect.DeepEqual(accepted, want) {
				t.Errorf("got %+v, want %+v", accepted, want)
			}
		})
	}
}

// TestSubscribe_OCMClientSendsNoProtocol: an OCM broker receives no header that an OCM client would not send.
func TestSubscribe_OCMClientSendsNoProtocol(t *testing.T) {
	seen := make(chan metadata.MD, 1)
	c := dial(t, &service{subscribe: func(_ *cloudeventsv1.SubscriptionRequest, out stream) error {
		md, _ := metadata.FromIncomingContext(out.Context())
		seen <- md
		return status.Error(codes.NotFound, "done")
	}}, grpc.Options{})
	_, err := subscribe(t.Context(), c, nil)
	wantCode(t, err, transport.CodeNotFound, "done")
	for key := range <-seen {
		if strings.HasPrefix(key, "hawser") {
			t.Errorf("an OCM client sent %q", key)
		}
	}
}

func TestSubscribe_NoAnswer(t *testing.T) {
	c := dial(t, &service{subscribe: func(_ *cloudeventsv1.SubscriptionRequest, out stream) error { return hang(out) }},
		grpc.Options{SubscribeTimeout: 30 * time.Millisecond})
	_, err := subscribe(t.Context(), c, nil)
	wantCode(t, err, transport.CodeDeadline, "within 30ms")
}

func TestSubscribe_UnresponsiveBroker(t *testing.T) {
	c := dial(t, accepting(nil, hang), grpc.Options{HealthTimeout: 30 * time.Millisecond})
	_, err := subscribe(t.Context(), c, nil)
	wantCode(t, err, transport.CodeUnavailable, "heartbeat")
}

// TestSubscribe_Health: heartbeats keep a subscription alive, and silence is allowed if the check is off. A
// slow handler does not make the broker appear silent.
func TestSubscribe_Health(t *testing.T) {
	t.Parallel()
	// The timeout is long enough for a busy machine; each case takes longer.
	const timeout = 3 * time.Second
	const longer = timeout * 3 / 2
	t.Run("heartbeats", func(t *testing.T) {
		t.Parallel()
		beating := func(out stream) error {
			tick := time.NewTicker(timeout / 10)
			defer tick.Stop()
			for begun := time.Now(); time.Since(begun) < longer; <-tick.C {
				if err := out.Send(heartbeat()); err != nil {
					return err
				}
			}
			return status.Error(codes.NotFound, "done")
		}
		_, err := subscribe(t.Context(), dial(t, accepting(nil, beating), grpc.Options{HealthTimeout: timeout}), nil)
		wantCode(t, err, transport.CodeNotFound, "done")
	})
	quiet := func(out stream) error {
		select {
		case <-time.After(longer):
		case <-out.Context().Done():
		}
		return status.Error(codes.NotFound, "done")
	}
	t.Run("fewer heartbeats", func(t *testing.T) {
		t.Parallel()
		asks := transport.Subscription{Filter: transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles}, Hello: transport.Hello{Heartbeat: longer}}
		err := dial(t, accepting(nil, quiet), grpc.Options{HealthTimeout: timeout}).Subscribe(t.Context(), asks, func(transport.Accepted) {}, nil)
		wantCode(t, err, transport.CodeNotFound, "done")
	})
	t.Run("off", func(t *testing.T) {
		t.Parallel()
		_, err := subscribe(t.Context(), dial(t, accepting(nil, quiet), grpc.Options{HealthTimeout: -1}), nil)
		wantCode(t, err, transport.CodeNotFound, "done")
	})
	t.Run("slow handler", func(t *testing.T) {
		t.Parallel()
		// With several events the reader waits for the handler and cannot read heartbeats.
		events := func(out stream) error {
			return errors.Join(out.Send(wireEvent(t, nil)), out.Send(wireEvent(t, nil)), out.Send(wireEvent(t, nil)),
				status.Error(codes.NotFound, "done"))
		}
		handled := 0
		_, err := subscribe(t.Context(), dial(t, accepting(nil, events), grpc.Options{HealthTimeout: timeout}),
			func(context.Context, codec.Event) error {
				if handled++; handled == 1 {
					<-time.After(longer)
				}
				return nil
			})
		wantCode(t, err, transport.CodeNotFound, "done")
		if handled != 3 {
			t.Errorf("%d of 3 events were handled", handled)
		}
	})
}

// TestSubscribe_UndecodableEvent: an invalid event is logged and dropped; the valid ones are delivered.
func TestSubscribe_UndecodableEvent(t *testing.T) {
	var log strings.Builder
	c := dial(t, accepting(nil, func(out stream) error {
		bad := wireEvent(t, []byte("secret"))
		bad.Id = ""
		return errors.Join(out.Send(bad), out.Send(wireEvent(t, nil)), status.Error(codes.NotFound, "done"))
	}), grpc.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	var got []string
	_, err := subscribe(t.Context(), c, func(_ context.Context, e codec.Event) error { got = append(got, e.ID()); return nil })
	wantCode(t, err, transport.CodeNotFound, "done")
	if len(got) != 1 || got[0] != "event-1" {
		t.Errorf("got events %v", got)
	}
	if !strings.Contains(log.String(), "cannot be decoded") || !strings.Contains(log.String(), `\"id\"`) || strings.Contains(log.String(), "secret") {
		t.Errorf("the log is %q", log.String())
	}
}
