package mqtt

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// FuzzBroker makes a broker send any bytes, after the CONNACK or instead of it.
func FuzzBroker(f *testing.F) {
	encode := func(cps ...*packets.ControlPacket) []byte {
		var b bytes.Buffer
		for _, cp := range cps {
			if _, err := cp.WriteTo(&b); err != nil {
				f.Fatal(err)
			}
		}
		return b.Bytes()
	}
	m, err := codec.ToMessage(newEvent(1))
	if err != nil {
		f.Fatal(err)
	}
	suback := packets.NewControlPacket(packets.SUBACK)
	suback.Content.(*packets.Suback).PacketID = 1
	suback.Content.(*packets.Suback).Reasons = []byte{1}
	suback.Content.(*packets.Suback).Properties.User = users(property.Accepted(transport.Accepted{SubscriptionID: "s", Protocol: transport.Protocol}))
	goodbye := packets.NewControlPacket(packets.DISCONNECT)
	goodbye.Content.(*packets.Disconnect).ReasonCode = byte(property.TakenOver)
	connack := packets.NewControlPacket(packets.CONNACK)
	connack.Content.(*packets.Connack).Properties.AuthMethod = "x"
	f.Add(true, true, encode(suback, publishPacket(1, "sources/source1/clusters/cluster1/sourceevents", m), goodbye))
	f.Add(true, false, encode(suback, publishPacket(1, "sources/source2/clusters/cluster1/sourceevents", m), packets.NewControlPacket(packets.PINGRESP)))
	f.Add(false, false, encode(connack))
	f.Add(true, false, []byte{0x32, 0xff, 0xff, 0xff, 0x7f, 0, 1, 'x', 0, 1})
	f.Fuzz(func(t *testing.T, welcome, hawser bool, data []byte) {
		ours, theirs := net.Pipe()
		o := Options{
			Broker: "127.0.0.1:1", Insecure: true, ClientID: "client-1", Topics: testTopics, MaxEventBytes: 1 << 20, Log: slog.New(slog.DiscardHandler),
			DialContext: func(context.Context, string, string) (net.Conn, error) { return ours, nil },
		}
		done := make(chan struct{})
		go func() { // ends with the pipe
			defer close(done)
			defer theirs.Close()
			p := &peer{Conn: theirs, t: t}
			if welcome {
				p.welcome(hawser)
				p.read() // SUBSCRIBE
			} else {
				p.read() // CONNECT
			}
			readable := make(chan struct{})
			go func() { // ends with the pipe
				defer close(readable)
				_, _ = io.Copy(io.Discard, theirs)
			}()
			_, _ = theirs.Write(data) // the client may have closed it
			_ = theirs.Close()
			<-readable
		}()
		c, err := newDialer(t, o).Dial(t.Context())
		if err == nil {
			err = c.Subscribe(t.Context(), agentSubscription(), func(transport.Accepted) {}, func(_ context.Context, e codec.Event) error {
				if e.Type() == "" {
					t.Error("an event without a type")
				}
				return nil
			})
			if err == nil {
				t.Error("a subscription ends with an error")
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		_ = ours.Close()
		<-done
	})
}
