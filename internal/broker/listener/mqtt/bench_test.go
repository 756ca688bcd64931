package mqtt_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
)

// BenchmarkPublish is the benchmark of the gRPC server, over MQTT: works of about 4 KiB on one connection, with
// several in flight.
func BenchmarkPublish(b *testing.B) {
	for _, window := range []int{1, 64} {
		b.Run(fmt.Sprintf("%d in flight", window), func(b *testing.B) {
			k := testkit.StartBroker(b, testkit.Options{Port: true, Known: []identity.Identity{source1}})
			s := &site{t: b, addr: k.Addr, ca: k.CA}
			p := s.join(source1)
			if err := p.SetDeadline(time.Time{}); err != nil {
				b.Fatal(err)
			}
			m := event(b, "hub1", "cluster1", "w0", 1)
			m.Payload = []byte(`{"manifests":["` + strings.Repeat("x", 3600) + `"]}`)
			var all [64][]byte // one per work, without versions
			for n := range all {
				all[n] = encoded(b, publish(uint16(n+1), specs1, named(m, fmt.Sprint("w", n))))
			}
			b.ReportAllocs()
			b.ResetTimer()
			sent, acked := 0, 0
			for acked < b.N {
				for sent < b.N && sent-acked < window {
					n := sent % window
					p.sendBytes(versioned(all[n], sent/window+1))
					sent++
				}
				for first := true; acked < sent && (first || sent-acked > window/2 || sent == b.N); first = false {
					if k := p.receive(); k.FixedHeader.Type != packets.Puback || k.ReasonCode != 0 {
						b.Fatalf("%+v", k)
					}
					acked++
				}
			}
		})
	}
}

// BenchmarkDeliver is the benchmark of the gRPC server, over MQTT: one publish, one delivery, closed loop over
// many sessions.
func BenchmarkDeliver(b *testing.B) {
	for _, n := range []int{100, 3000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkDeliver(b, n) })
	}
}

func benchmarkDeliver(b *testing.B, sessions int) {
	k := testkit.StartBroker(b, testkit.Options{Port: true, Known: []identity.Identity{source1}})
	s := &site{t: b, addr: k.Addr, ca: k.CA}
	before := heap()
	arrived := make(chan struct{}, sessions)
	agents := make([]*peer, sessions)
	for i := range sessions {
		agent := identity.Identity{Role: identity.Agent, Name: fmt.Sprint("c", i)}
		agents[i] = s.join(agent)
		agents[i].send(subscribe(1, "sources/+/clusters/"+agent.Name+"/sourceevents"))
		agents[i].expect(packets.Suback)
		if err := agents[i].SetDeadline(time.Time{}); err != nil {
			b.Fatal(err)
		}
	}
	perSession := float64(heap()-before) / 1024 / float64(sessions)
	for _, a := range agents {
		a.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}}) // keeps the connection open for 90 seconds
		go func() {                                                                     // ends with its connection
			for {
				k, err := a.next()
				if err == nil && k.FixedHeader.Type == packets.Publish {
					_, err = a.Write(encoded(b, puback(k.PacketID, 0)))
					arrived <- struct{}{}
				}
				if err != nil {
					return
				}
			}
		}()
	}
	source := s.join(source1)
	if err := source.SetDeadline(time.Time{}); err != nil {
		b.Fatal(err)
	}
	go func() { // ends with its connection
		for {
			if _, err := source.next(); err != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	const window = 64
	for n := range b.N + window {
		if n >= window {
			<-arrived
		}
		if n < b.N {
			cluster := fmt.Sprint("c", n%sessions)
			m := event(b, "hub1", cluster, fmt.Sprint("w", n%window), int32(n+1))
			m.Payload = []byte(`{"manifests":["` + strings.Repeat("x", 3600) + `"]}`)
			source.send(publish(uint16(n%1000+1), "sources/hub1/clusters/"+cluster+"/sourceevents", m))
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "publishes/s")
	b.ReportMetric(perSession, "KiB/session") // both ends of the connection
}

func heap() uint64 {
	for range 5 { // each cycle halves stacks that are too large
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// named returns the work with another id, and with space for a version of fixed length.
func named(m codec.Message, id string) codec.Message {
	var p []codec.Property
	for _, u := range m.Properties {
		switch u.Key {
		case "ce-resourceid":
			u.Value = id
		case "ce-resourceversion":
			u.Value = "0000000001"
		case "ce-metadata":
			u.Value = strings.ReplaceAll(u.Value, `"w0"`, `"`+id+`"`)
		}
		p = append(p, u)
	}
	m.Properties = p
	return m
}

// versioned writes a version into a packet.
func versioned(packet []byte, version int) []byte {
	const key = "ce-resourceversion"
	at := strings.Index(string(packet), key) + len(key)
	if binary.BigEndian.Uint16(packet[at:]) != 10 {
		panic("no room for a version")
	}
	copy(packet[at+2:], fmt.Sprintf("%010d", version))
	return packet
}
