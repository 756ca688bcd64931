package mqtt_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/pkg/transport"
)

// FuzzConversation sends arbitrary bytes after CONNECT. The broker must not panic, the connection must end
// after the last byte, and only valid calls may reach the server.
func FuzzConversation(f *testing.F) {
	add := func(all ...packets.Packet) {
		var b []byte
		for _, k := range all {
			b = append(b, encoded(f, k)...)
		}
		f.Add(b)
	}
	add(publish(1, specs1, event(f, "hub1", "cluster1", "w1", 1)), subscribe(2, allSpecs), puback(1, 0))
	add(subscribe(1, allSpecs, shared, "#"), publish(3, specs1, event(f, "hub1", "cluster1", "w1", 1)), packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	unsubscribe := subscribe(3, allSpecs)
	unsubscribe.FixedHeader.Type = packets.Unsubscribe
	add(subscribe(1, allSpecs), unsubscribe, packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	f.Add([]byte{0x82, 7, 0, 1, 0, 0, 1, '#'}) // a filter without its option byte
	e := wire(f, event(f, "hub1", "cluster1", "w1", 1))
	s := accepts
	s.subscribe = func(ctx context.Context, _ transport.Peer, r transport.RawSubscription, out transport.Stream) error {
		if (r.Source == "") == (r.Cluster == "") {
			f.Errorf("%+v is no subscription", r)
		}
		if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
			return err
		}
		for range 3 {
			if err := out.Send(e); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return ctx.Err()
	}
	o := open(f, s, func(g *grpc.Config, m *mqtt.Config) { g.Insecure, m.PublishTimeout = true, time.Second })
	unnamed := connectPacket()
	unnamed.Connect.ClientIdentifier = "" // without a client id there is no takeover
	hello := encoded(f, unnamed)
	f.Fuzz(func(t *testing.T, b []byte) {
		conn, err := net.Dial("tcp", o.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(append(append([]byte{}, hello...), b...)); err != nil {
			return // the broker ended the connection before all bytes were sent
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the connection does not end")
		}
		select {
		case <-o.panics:
			t.Fatal("it panicked")
		default:
		}
	})
}
