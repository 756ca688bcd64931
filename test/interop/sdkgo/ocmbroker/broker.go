package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/payload"
	pbv1 "open-cluster-management.io/sdk-go/pkg/cloudevents/generic/options/grpc/protobuf/v1"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/options/grpc/protocol"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/types"
	ocmgrpc "open-cluster-management.io/sdk-go/pkg/cloudevents/server/grpc"

	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/console"
	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/wire"
)

// broker is the OCM broker with a service in memory behind it.
type broker struct {
	listen, cert, key, clientCA string

	console *console.Console
	ocm     *ocmgrpc.GRPCBroker
	works   *service
}

func (b *broker) run(ctx context.Context, in io.Reader) error {
	creds, err := b.credentials()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", b.listen)
	if err != nil {
		return err
	}
	b.works = newService()
	b.ocm = ocmgrpc.NewGRPCBroker(ocmgrpc.NewBrokerOptions())
	b.ocm.RegisterService(ctx, payload.ManifestBundleEventDataType, b.works)
	server := grpc.NewServer(grpc.Creds(creds), grpc.UnaryInterceptor(b.printPublish), grpc.StreamInterceptor(b.printStream))
	pbv1.RegisterCloudEventServiceServer(server, b.ocm)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }() // Stop ends it
	b.console.Print(console.Line{What: "listening", Addr: listener.Addr().String()})

	err = b.console.Serve(ctx, in, map[string]console.Handler{
		"put": b.put, "send": b.send, "drop": b.drop, "fill": b.fill, "refuse": b.refuse,
	})
	server.Stop()
	return errors.Join(err, <-served)
}

func (b *broker) credentials() (credentials.TransportCredentials, error) {
	if b.cert == "" {
		return insecure.NewCredentials(), nil
	}
	pair, err := tls.LoadX509KeyPair(b.cert, b.key)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(b.clientCA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", b.clientCA)
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}), nil
}

// printPublish prints each published event with the broker's answer.
func (b *broker) printPublish(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	r, ok := req.(*pbv1.PublishRequest)
	if !ok {
		return next(ctx, req)
	}
	e, err := binding.ToEvent(ctx, protocol.NewMessage(r.Event))
	if err != nil {
		b.console.Print(console.Failure("undecodable", err))
		return next(ctx, req)
	}
	if err := b.registered(ctx, e.Type(), fmt.Sprint(e.Extensions()[types.ExtensionClusterName])); err != nil {
		return nil, err
	}
	answer, err := next(ctx, req)
	l := console.Line{}
	if err != nil {
		l = console.Failure("", err)
	}
	l.What, l.Event = "published", wire.Show(e)
	b.console.Print(l)
	return answer, err
}

// registered holds a resync request back until the broker has registered the stream for the answer. The OCM
// broker sends the header before that, and sometimes drops the answer to a fast agent. A test needs the answer.
func (b *broker) registered(ctx context.Context, eventType, cluster string) error {
	t, err := types.ParseCloudEventsType(eventType)
	if err != nil || t.Action != types.ResyncRequestAction {
		return nil //nolint:nilerr // the broker itself says what is wrong with the type
	}
	return b.subscribed(ctx, cluster)
}

// printStream prints the start and the end of each stream.
func (b *broker) printStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	b.console.Print(console.Line{What: "stream"})
	err := next(srv, ss)
	b.console.Print(console.Line{What: "streamEnd"})
	return err
}

const pollEvery = 2 * time.Millisecond

func (b *broker) subscribed(ctx context.Context, cluster string) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !b.ocm.IsConsumerSubscribed(cluster) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// put stores an event as the state of its work, and sends it to the cluster.
func (b *broker) put(ctx context.Context, c console.Command) (console.Line, error) {
	e, err := c.Event.CloudEvent()
	if err != nil {
		return console.Line{}, err
	}
	if err := b.works.put(e); err != nil {
		return console.Line{}, err
	}
	return console.Line{}, b.ocm.HandleEvent(ctx, e)
}

// send sends an event to the cluster without storing it.
func (b *broker) send(ctx context.Context, c console.Command) (console.Line, error) {
	e, err := c.Event.CloudEvent()
	if err != nil {
		return console.Line{}, err
	}
	return console.Line{}, b.ocm.HandleEvent(ctx, e)
}

// drop removes a work without an event.
func (b *broker) drop(_ context.Context, c console.Command) (console.Line, error) {
	return console.Line{}, b.works.drop(c.Name)
}

// fill stores the given number of works of a cluster without sending them. Each is a copy of one event in which
// "%d" becomes the number.
func (b *broker) fill(_ context.Context, c console.Command) (console.Line, error) {
	for n := range c.Count {
		e, err := c.Event.Numbered(n).CloudEvent()
		if err != nil {
			return console.Line{}, err
		}
		if err := b.works.put(e); err != nil {
			return console.Line{}, err
		}
	}
	return console.Line{Count: c.Count}, nil
}

// refuse makes the next status updates fail, with a conflict of a kube-apiserver or with another error.
func (b *broker) refuse(_ context.Context, c console.Command) (console.Line, error) {
	return console.Line{}, b.works.refuse(c.Count, c.Text)
}
