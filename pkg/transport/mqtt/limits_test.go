package mqtt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// cloud is a row of the table of brokers in docs/mqtt.md. 0: no limit is known.
type cloud struct {
	name string
	// receive, packet and qos are in the CONNACK: Receive Maximum, Maximum Packet Size, Maximum QoS.
	receive uint16
	packet  uint32
	qos     *byte

	payload, properties, topic, levels, clientID, filters    int
	inFlight, inFlightBytes, perSecond, bytesPerSecond, wait int
	// strict: user properties are accepted on PUBLISH only, no QoS 2, nothing retained and no subscription id. A
	// client that answers a message with a failure is disconnected.
	strict bool
}

var clouds = []cloud{
	{name: "Mosquitto 2.0", receive: 20, topic: 65535, clientID: 65535, inFlight: 20},
	{name: "EMQX 5.8", receive: 32, packet: 1 << 20, topic: 65535, levels: 128, clientID: 65535, inFlight: 32},
	{
		name: "AWS IoT Core", receive: 100, qos: pointer[byte](1), payload: 128 << 10, properties: 8 << 10, topic: 256, levels: 8,
		clientID: 128, filters: 8, inFlight: 100, perSecond: 100, bytesPerSecond: 512 << 10, wait: 1200, strict: true,
	},
	{
		name: "Azure Event Grid", receive: 1000, packet: 512 << 10, qos: pointer[byte](1), payload: 512 << 10, properties: 32 << 10, topic: 256, levels: 8,
		clientID: 128, filters: 10, inFlight: 1000, inFlightBytes: 64 << 10, perSecond: 100, bytesPerSecond: 1 << 20, wait: 1160, strict: true,
	},
}

// warden checks the packets that a client sends to a cloud.
type warden struct {
	cloud
	mu     sync.Mutex
	flying map[uint16]int // publishes that are not acknowledged, with their sizes
	bytes  int            // sum of the sizes
	recent []sent         // publishes of the last second
}

type sent struct {
	at   time.Time
	size int
}

// admit returns an error if a packet of this size exceeds a limit.
func (w *warden) admit(cp *packets.ControlPacket, size int, now time.Time) error {
	most := func(what string, n, limit int) error {
		if limit > 0 && n > limit {
			return fmt.Errorf("%s: %s is %d, at most %d", w.name, what, n, limit)
		}
		return nil
	}
	names := func(name string) error {
		return errors.Join(most("topic", len(name), w.topic), most("levels", strings.Count(name, "/")+1, w.levels))
	}
	err := most("packet", size, int(w.packet))
	switch p := cp.Content.(type) {
	case *packets.Connect:
		return errors.Join(err, w.cleartext(p.Properties.User), most("client id", len(p.ClientID), w.clientID), most("keep alive", int(p.KeepAlive), w.wait))
	case *packets.Subscribe:
		for _, s := range p.Subscriptions {
			err = errors.Join(err, names(s.Topic), most("QoS", int(s.QoS), 1))
		}
		if w.strict && p.Properties.SubscriptionIdentifier != nil {
			err = errors.Join(err, errors.New("a subscription id"))
		}
		return errors.Join(err, w.cleartext(p.Properties.User), most("filters", len(p.Subscriptions), w.filters))
	case *packets.Puback:
		if w.strict && p.ReasonCode >= 0x80 {
			err = errors.Join(err, fmt.Errorf("PUBACK %#02x", p.ReasonCode))
		}
		return errors.Join(err, w.cleartext(p.Properties.User))
	case *packets.Disconnect:
		return errors.Join(err, w.cleartext(p.Properties.User))
	case *packets.Publish:
		properties := 0
		for _, u := range p.Properties.User {
			properties += len(u.Key) + len(u.Value)
		}
		if p.Properties.TopicAlias != nil {
			err = errors.Join(err, errors.New("a topic alias"))
		}
		if p.Retain {
			err = errors.Join(err, errors.New("to be retained"))
		}
		return errors.Join(err, names(p.Topic), most("payload", len(p.Payload), w.payload), most("properties", properties, w.properties),
			most("QoS", int(p.QoS), 1), w.count(p.PacketID, size, now, most))
	}
	return err
}

// cleartext returns an error for user properties in a packet that may have none.
func (w *warden) cleartext(u []packets.User) error {
	if w.strict && len(u) > 0 {
		return fmt.Errorf("%s: user properties on another packet than PUBLISH", w.name)
	}
	return nil
}

// count counts a publish.
func (w *warden) count(id uint16, size int, now time.Time, most func(string, int, int) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flying[id] = size
	w.bytes += size
	w.recent = append(w.recent, sent{now, size})
	for now.Sub(w.recent[0].at) >= time.Second {
		w.recent = w.recent[1:]
	}
	bytes := 0
	for _, s := range w.recent {
		bytes += s.size
	}
	err := errors.Join(most("in flight", len(w.flying), w.inFlight), most("publishes in a second", len(w.recent), w.perSecond),
		most("bytes in a second", bytes, w.bytesPerSecond))
	if len(w.flying) > 1 { // a single packet may be larger
		err = errors.Join(err, most("bytes in flight", w.bytes, w.inFlightBytes))
	}
	return err
}

func (w *warden) answered(id uint16) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes -= w.flying[id]
	delete(w.flying, id)
}

// guard sits between a client and the listener. The listener has the limits of the cloud and announces them in
// the same way. A violation fails the test and ends the connection.
func (w *warden) guard(t *testing.T, client, broker net.Conn) {
	defer client.Close()
	defer broker.Close()
	var down sync.WaitGroup
	defer down.Wait()
	down.Go(func() { // ends with the connections
		defer client.Close()
		for {
			cp, err := packets.ReadPacket(broker)
			if err != nil {
				return
			}
			switch p := cp.Content.(type) {
			case *packets.Connack:
				p.Properties = &packets.Properties{ReceiveMaximum: &w.receive, MaximumQOS: w.qos}
				if w.packet > 0 {
					p.Properties.MaximumPacketSize = &w.packet
				}
			case *packets.Suback:
				p.Properties.User = nil
			case *packets.Puback:
				w.answered(p.PacketID)
				p.Properties.User = nil
			}
			var b bytes.Buffer
			if _, err := cp.WriteTo(&b); err != nil {
				t.Error(err)
			}
			if _, err := client.Write(b.Bytes()); err != nil {
				return
			}
		}
	})
	for {
		var b bytes.Buffer
		cp, err := packets.ReadPacket(io.TeeReader(client, &b))
		if err != nil {
			_ = broker.Close() // ends the other direction
			return
		}
		if err := w.admit(cp, b.Len(), time.Now()); err != nil {
			t.Error(err)
			_ = broker.Close() // ends the other direction
			return
		}
		if _, err := broker.Write(b.Bytes()); err != nil {
			return
		}
	}
}

// pipes is an in-memory listener, so that synctest bubbles can skip waits.
type pipes struct {
	arrivals chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.arrivals:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// unhurried is a broker's server that needs 40 ms for each publish, and sends its events to each subscriber.
type unhurried struct{ sends [][]byte }

func (s unhurried) Publish(ctx context.Context, _ transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
	select {
	case <-time.After(40 * time.Millisecond):
	case <-ctx.Done():
		return transport.Receipt{}, ctx.Err()
	}
	return transport.Receipt{Outcome: codec.OutcomeAccepted}, nil
}

func (s unhurried) Subscribe(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
	if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
		return err
	}
	for _, b := range s.sends {
		if err := out.Send(b); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// The names have the maximum length of namespaces.
var (
	longSource  = strings.Repeat("s", 63)
	longCluster = strings.Repeat("c", 63)
	longTopics  = topic.Set{
		SourceEvents: "sources/" + longSource + "/clusters/+/sourceevents", AgentEvents: "sources/" + longSource + "/clusters/+/agentevents",
		SourceBroadcast: "sources/+/sourcebroadcast", AgentBroadcast: "clusters/+/agentbroadcast",
	}
)

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// traffic is the burst of a hub-source, or of the agent of a cluster, after a resync. It has hundreds of works,
// some of them large, and a list of a thousand.
func traffic(t *testing.T, ofSource bool) (events []codec.Event) {
	t.Helper()
	now := time.Unix(1_800_000_000, 0).UTC()
	var versions []codec.ResourceVersion
	for n := range 1000 {
		size := 2 << 10
		switch {
		case n%100 == 0:
			size = 100 << 10
		case n%10 == 0:
			size = 20 << 10
		}
		manifest := must[[]byte](t)(json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": "x"}, "data": map[string]string{"x": strings.Repeat("x", size)}}))
		w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("work-%d", n), Namespace: longCluster, UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)), Generation: 7,
			Annotations: map[string]string{"note": strings.Repeat("n", n%2*3<<10)},
		}}
		w.Spec.Workload.Manifests = []workv1.Manifest{{RawExtension: runtime.RawExtension{Raw: manifest}}}
		if n%50 == 1 {
			w.DeletionTimestamp = &metav1.Time{Time: now}
		}
		e := must[codec.Event](t)(manifestwork.EncodeSpec(w, manifestwork.SpecParams{ID: fmt.Sprint(n), Now: now, Source: longSource, Action: codec.ResyncResponse}))
		versions = append(versions, codec.ResourceVersion{ResourceID: string(w.UID), ResourceVersion: 7, Tag: strings.Repeat("0", 32)})
		if n >= 300 {
			continue
		}
		if !ofSource {
			metadata, _, err := codec.StringExtension(e, codec.ExtMetadata)
			if err != nil {
				t.Fatal(err)
			}
			ref := manifestwork.Ref{ResourceID: string(w.UID), Name: w.Name, Cluster: longCluster, Generation: 7, Metadata: metadata}
			status := workv1.ManifestWorkStatus{Conditions: []metav1.Condition{{Type: "Applied", Status: "True", Reason: "Done", Message: strings.Repeat("m", size)}}}
			e = must[codec.Event](t)(manifestwork.EncodeStatus(ref, status, manifestwork.StatusParams{
				ID: fmt.Sprint(n), Now: now, Source: "agent", OriginalSource: longSource, Action: codec.UpdateRequest, SequenceID: "7",
			}))
		}
		events = append(events, e)
	}
	request := codec.ResyncParams{ID: "ask", Time: now, Source: "agent", Cluster: longCluster, DataType: codec.ManifestBundles}
	if !ofSource {
		return append(events, must[codec.Event](t)(codec.NewSpecResyncRequest(request, versions)),
			must[codec.Event](t)(codec.NewKeepalive(codec.SyncParams{ID: "alive", Time: now, Source: "agent", Cluster: longCluster, Owner: longSource}, codec.Digest{Count: 1000})))
	}
	request.Source = longSource
	return append(events, must[codec.Event](t)(codec.NewStatusResyncRequest(request, nil)))
}

// TestLimits: Hawser clients stay within the limits of all brokers in the table. Publishing to brokers without
// a rate limit is as fast as before.
func TestLimits(t *testing.T) {
	specs, statuses := traffic(t, true), traffic(t, false)
	for _, c := range clouds {
		t.Run(c.name+" hub-source", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { withinLimits(t, c, transport.Filter{Source: longSource}, specs, statuses) })
		})
		t.Run(c.name+" agent", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { withinLimits(t, c, transport.Filter{Cluster: longCluster}, statuses, specs) })
		})
	}
}

// withinLimits makes a client publish all its events and receive some.
func withinLimits(t *testing.T, c cloud, f transport.Filter, reported, received []codec.Event) {
	f.DataType = codec.ManifestBundles
	var s unhurried
	for _, e := range received[:100] {
		s.sends = append(s.sends, must[[]byte](t)(codec.Marshal(e)))
	}
	l := &pipes{arrivals: make(chan net.Conn), closed: make(chan struct{})}
	serve(t, l, s, nil)
	w := &warden{cloud: c, flying: map[uint16]int{}}
	var guards sync.WaitGroup
	t.Cleanup(guards.Wait)
	conn, err := newDialer(t, Options{
		Broker: "127.0.0.1:1883", Insecure: true, ClientID: ClientID(f), Topics: longTopics, Log: slog.New(slog.DiscardHandler),
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			toBroker, fromClient := net.Pipe()
			l.arrivals <- fromClient
			guards.Go(func() { w.guard(t, theirs, toBroker) })
			return ours, nil
		},
	}).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, len(s.sends))
	sub := subscribe(t, conn, transport.Subscription{Filter: f}, func(_ context.Context, e codec.Event) error { got <- e.ID(); return nil })
	<-sub.ready

	began := time.Now()
	events := make(chan codec.Event)
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for e := range events {
				if _, err := conn.Publish(t.Context(), e, ""); err != nil {
					t.Errorf("%s: %v", e.ID(), err)
				}
			}
		})
	}
	for _, e := range reported {
		events <- e
	}
	close(events)
	callers.Wait()
	if took := time.Since(began); c.perSecond == 0 && took > 2*time.Second {
		t.Errorf("a broker that bounds no rate is sent a few hundred events in %v", took)
	}
	for range s.sends {
		<-got
	}

	// An event that does not fit gets an error, and the connection stays open.
	e := reported[0].Clone()
	e.SetExtension(codec.ExtMetadata, fmt.Sprintf(`{"name":"w","annotations":{"note":%q}}`, strings.Repeat("n", 10<<10)))
	_, err = conn.Publish(t.Context(), e, "")
	if c.properties == 0 {
		if err != nil {
			t.Errorf("10 KiB of metadata: %v", err)
		}
	} else if e := wantCode(t, err, transport.CodeTooLarge, "metadata", "8192"); e.Attribute != codec.ExtMetadata {
		t.Errorf("%+v", e)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	wantCode(t, <-sub.ended, transport.CodeUnavailable)
}

// TestLimits_AreNoticed: the warden rejects each packet above a limit, and accepts packets just within it.
func TestLimits_AreNoticed(t *testing.T) {
	aws, azure := clouds[2], clouds[3]
	publish := func(edit func(p *packets.Publish)) *packets.ControlPacket {
		cp := publishPacket(1, specTopic, codec.Message{Payload: []byte("p")})
		edit(cp.Content.(*packets.Publish))
		return cp
	}
	filters := func(n int) *packets.ControlPacket {
		cp := packets.NewControlPacket(packets.SUBSCRIBE)
		cp.Content.(*packets.Subscribe).Subscriptions = make([]packets.SubOptions, n)
		return cp
	}
	client := func(n int) *packets.ControlPacket {
		cp := packets.NewControlPacket(packets.CONNECT)
		cp.Content.(*packets.Connect).ClientID = strings.Repeat("c", n)
		return cp
	}
	reported := filters(1)
	reported.Content.(*packets.Subscribe).Properties.User = []packets.User{{Key: "k", Value: "v"}}
	failed := packets.NewControlPacket(packets.PUBACK)
	failed.Content.(*packets.Puback).ReasonCode = 0x83
	for name, c := range map[string]struct {
		cloud  cloud
		packet *packets.ControlPacket
		before int // number of publishes in the same second
		size   int
		want   string
	}{
		"payload":        {aws, publish(func(p *packets.Publish) { p.Payload = make([]byte, 128<<10) }), 0, 1, ""},
		"larger":         {aws, publish(func(p *packets.Publish) { p.Payload = make([]byte, 128<<10+1) }), 0, 1, "payload"},
		"packet":         {azure, publish(func(*packets.Publish) {}), 0, 512<<10 + 1, "packet"},
		"packet of EMQX": {clouds[1], publish(func(*packets.Publish) {}), 0, 1<<20 + 1, "packet"},
		"properties": {aws, publish(func(p *packets.Publish) {
			p.Properties.User = []packets.User{{Key: "k", Value: strings.Repeat("v", 8<<10)}}
		}), 0, 1, "properties"},
		"properties, Azure": {azure, publish(func(p *packets.Publish) {
			p.Properties.User = []packets.User{{Key: "k", Value: strings.Repeat("v", 32<<10)}}
		}), 0, 1, "properties"},
		"elsewhere":         {azure, reported, 0, 1, "another packet"},
		"topic":             {aws, publish(func(p *packets.Publish) { p.Topic = strings.Repeat("t", 257) }), 0, 1, "topic"},
		"levels":            {azure, publish(func(p *packets.Publish) { p.Topic = "1/2/3/4/5/6/7/8/9" }), 0, 1, "levels"},
		"8 levels":          {azure, publish(func(p *packets.Publish) { p.Topic = "1/2/3/4/5/6/7/8" }), 0, 1, ""},
		"filters":           {aws, filters(9), 0, 1, "filters"},
		"8 filters":         {aws, filters(8), 0, 1, ""},
		"client id":         {aws, client(129), 0, 1, "client id"},
		"client id of 128":  {aws, client(128), 0, 1, ""},
		"QoS":               {aws, publish(func(p *packets.Publish) { p.QoS = 2 }), 0, 1, "QoS"},
		"retained":          {aws, publish(func(p *packets.Publish) { p.Retain = true }), 0, 1, "retained"},
		"alias":             {aws, publish(func(p *packets.Publish) { p.Properties.TopicAlias = pointer[uint16](1) }), 0, 1, "alias"},
		"acknowledgement":   {azure, failed, 0, 1, "0x83"},
		"in flight":         {clouds[0], publish(func(*packets.Publish) {}), 20, 1, "in flight"},
		"20 in flight":      {clouds[0], publish(func(*packets.Publish) {}), 19, 1, ""},
		"bytes in flight":   {azure, publish(func(*packets.Publish) {}), 1, 40 << 10, "bytes in flight"},
		"rate":              {azure, publish(func(*packets.Publish) {}), 100, 1, "publishes in a second"},
		"bytes in a second": {aws, publish(func(*packets.Publish) {}), 5, 100 << 10, "bytes in a second"},
	} {
		w := &warden{cloud: c.cloud, flying: map[uint16]int{}}
		now := time.Unix(7, 0)
		for n := range c.before {
			if err := w.admit(publishPacket(uint16(n+2), specTopic, codec.Message{}), c.size, now); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		err := w.admit(c.packet, c.size, now)
		if got := fmt.Sprint(err); (err != nil) != (c.want != "") || !strings.Contains(got, c.want) && err != nil {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
