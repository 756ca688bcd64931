//go:build linux

package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/hawser-io/hawser/internal/pki"
)

// attacks are the attacks of hostile clients. Each runs until ctx ends.
var attacks = map[string]func(ctx context.Context, t target) error{
	// 80 endless bodies of 16 MiB, of calls that need no certificate.
	"health": func(ctx context.Context, t target) error {
		return bodies(ctx, t, false, "/grpc.health.v1.Health/Check")
	},
	// 80 endless bodies of 16 MiB, of publishes with the certificate of one agent.
	"publish": func(ctx context.Context, t target) error {
		return bodies(ctx, t, true, "/io.cloudevents.v1.CloudEventService/Publish")
	},
	"tcp":         connections,
	"idle":        idle,
	"handshakes":  handshakes,
	"tickets":     tickets,
	"reflection":  reflection,
	"resets":      resets,
	"crumbs":      crumbs,
	"outlive":     outlive,
	"viewers":     view,
	"lists":       lists,
	"statuses":    statuses,
	"ids":         ids,
	"statusflood": statusFlood,
	"specflood":   specFlood,
	"joiners":     joiners,
	"headers":     garble,

	"mqttlengths":    mqttLengths,
	"mqttproperties": mqttProperties,
	"mqttstorm":      mqttStorm,
	"mqttslow":       mqttSlow,
	"mqtthalves":     mqttHalves,
	"mqttids":        mqttIDs,
}

// tried are the attempts that run once before an attack. The attack starts after all of them have ended.
var tried = map[string]func(ctx context.Context, t target) error{"joiners": forge}

func runAttack(ctx context.Context, name string) error {
	attack, ok := attacks[strings.TrimSuffix(name, "-on-sink")]
	if !ok {
		return fmt.Errorf("no attack is called %q", name)
	}
	t := target{
		addr: os.Getenv("HAWSER_HOSTILE_ADDR"), pki: pki.Dir(os.Getenv("HAWSER_HOSTILE_PKI")), load: &load{},
		real: !strings.HasSuffix(name, "-on-sink"),
	}
	if try, ok := tried[name]; ok {
		if err := try(ctx, t); err != nil {
			return err
		}
	}
	if err := emit(outputLine{What: "ready"}); err != nil {
		return err
	}
	if err := attack(ctx, t); err != nil && ctx.Err() == nil {
		return err
	}
	t.load.mu.Lock()
	defer t.load.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(t.load.n)) {
		all = append(all, fmt.Sprintf("%d %s", t.load.n[what], what))
	}
	return emit(outputLine{What: "load", Text: strings.Join(all, ", ")})
}

// sideBySide runs n attackers. An attacker starts again after the broker has ended it.
func sideBySide(ctx context.Context, n int, pause time.Duration, do func(ctx context.Context) error) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range n {
		wg.Go(func() {
			_ = every(ctx, pause, func() error { // until ctx ends
				_ = do(ctx) // any error: the attacker starts again
				return nil
			})
		})
	}
	return nil
}

// again is the delay before an attacker that the broker has ended starts again.
const again = 10 * time.Millisecond

// bodies opens eight connections with ten calls each. Each call sends a body of 16 MiB without its end.
func bodies(ctx context.Context, t target, identified bool, method string) error {
	const size = 16<<20 - 64
	piece := make([]byte, 16<<10)
	return sideBySide(ctx, 8, again, func(ctx context.Context) error {
		w, err := t.open(ctx, identified)
		if err != nil {
			return err
		}
		defer w.Close()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				id, err := w.call(method)
				if err == nil {
					err = w.send(id, message(size))
				}
				for sent := 0; err == nil && sent < size-len(piece); sent += len(piece) {
					err = w.send(id, piece)
				}
				if err == nil {
					<-w.ended.Done() // the end of the body is never sent
				}
			})
		}
		wg.Wait()
		return nil
	})
}

// connections opens more TCP connections than the broker may have open files, and sends nothing on them.
func connections(ctx context.Context, t target) error {
	return sideBySide(ctx, nofile+200, again, func(ctx context.Context) error {
		c, err := t.tcp(ctx)
		if err != nil {
			return err
		}
		hold(ctx, c)
		return nil
	})
}

// idle opens as many connections with TLS and HTTP/2, with the agent's certificate, and sends no call on them.
func idle(ctx context.Context, t target) error {
	return sideBySide(ctx, nofile+200, again, func(ctx context.Context) error {
		w, err := t.open(ctx, true)
		if err != nil {
			return err
		}
		<-w.ended.Done()
		return w.Close()
	})
}

// hold reads until the connection ends.
func hold(ctx context.Context, c net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	_, _ = io.Copy(io.Discard, c) // any error ends it
	_ = c.Close()
}

// handshakes sends the same ClientHello on many connections. The broker computes a signature for each, the
// attacker nothing.
func handshakes(ctx context.Context, t target) error {
	hello, err := firstMessage(t.config(false))
	if err != nil {
		return err
	}
	return t.sendEach(ctx, hello)
}

// tickets sends the same ClientHello of an agent that resumes its session on many connections, as an observer of the
// network can. It goes before clients without a ticket. Every second one has a wrong proof of the session, which is
// at its end.
func tickets(ctx context.Context, t target) error {
	config := t.config(true)
	config.ServerName, config.ClientSessionCache = "broker", tls.NewLRUClientSessionCache(1)
	if t.real { // the sink issues no tickets
		c, err := t.secure(ctx, config)
		if err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 1)) // a ticket comes before it
		if _, kept := config.ClientSessionCache.Get(config.ServerName); !kept && err == nil {
			err = errors.New("the broker has issued no ticket")
		}
		if err = errors.Join(err, c.Close()); err != nil {
			return err
		}
	}
	hello, err := firstMessage(config)
	if err != nil {
		return err
	}
	wrong := slices.Clone(hello)
	wrong[len(wrong)-1]++
	return t.sendEach(ctx, hello, wrong)
}

// sendEach sends each ClientHello in turn, on a connection of its own.
func (t target) sendEach(ctx context.Context, hellos ...[]byte) error {
	var n atomic.Int64
	return sideBySide(ctx, 64, time.Millisecond, func(ctx context.Context) error {
		c, err := t.tcp(ctx)
		if err != nil {
			return err
		}
		hello := hellos[int(n.Add(1))%len(hellos)]
		if _, err = c.Write(hello); err == nil && t.real {
			_, err = io.ReadFull(c, make([]byte, 1)) // the signature was computed
		}
		if err == nil {
			t.load.add("handshakes begun", 1)
		}
		return errors.Join(err, c.Close())
	})
}

// firstMessage returns the ClientHello of a TLS client.
func firstMessage(c *tls.Config) ([]byte, error) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		_ = tls.Client(ours, c).Handshake() // ends with the pipe
	}()
	hello := make([]byte, 16<<10)
	n, err := theirs.Read(hello)
	return hello[:n], err
}

// reflection sends requests of gRPC server reflection on four connections, without waiting for answers.
func reflection(ctx context.Context, t target) error {
	request, err := proto.Marshal(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "hawser.v1.AdminService"},
	})
	if err != nil {
		return err
	}
	one := append(message(len(request)), request...)
	var many []byte
	for len(many)+len(one) <= 8<<10 {
		many = append(many, one...)
	}
	return sideBySide(ctx, 4, again, func(ctx context.Context) error {
		w, err := t.open(ctx, true)
		if err != nil {
			return err
		}
		defer w.Close()
		w.grow()
		id, err := w.call("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
		for err == nil {
			if err = w.send(id, many); err == nil {
				w.load.add("questions", int64(len(many)/len(one)))
			}
		}
		return err
	})
}

// grow opens the stream window, so that the broker may send answers of any size.
func (w *wire) grow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	// It fails only if the connection has ended. The next call returns that error.
	_ = w.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	_ = w.framer.WriteWindowUpdate(0, 1<<30)
}

// resets starts calls and resets them immediately, without a pause.
func resets(ctx context.Context, t target) error {
	return sideBySide(ctx, 4, again, func(ctx context.Context) error {
		w, err := t.open(ctx, true)
		if err != nil {
			return err
		}
		defer w.Close()
		for err == nil && w.ended.Err() == nil {
			var id uint32
			if id, err = w.call("/io.cloudevents.v1.CloudEventService/Publish"); err == nil {
				w.mu.Lock()
				err = w.framer.WriteRSTStream(id, http2.ErrCodeCancel)
				delete(w.streams, id)
				w.mu.Unlock()
			}
		}
		return err
	})
}

// crumbs sends bodies byte by byte, each byte in a frame of its own.
func crumbs(ctx context.Context, t target) error {
	const size = 16<<20 - 64
	return sideBySide(ctx, 4, again, func(ctx context.Context) error {
		w, err := t.open(ctx, true)
		if err != nil {
			return err
		}
		defer w.Close()
		id, err := w.call("/io.cloudevents.v1.CloudEventService/Publish")
		if err == nil {
			err = w.send(id, message(size))
		}
		var many bytes.Buffer
		framer := http2.NewFramer(&many, nil)
		const each = 1000
		for range each {
			if err = framer.WriteData(id, false, []byte{0}); err != nil {
				return err
			}
		}
		for sent := 0; err == nil && sent+each < size && w.ended.Err() == nil; sent += each {
			if err = w.spend(id, each); err == nil {
				_, err = w.Write(many.Bytes())
				w.load.add("frames of one byte", each)
			}
		}
		return err
	})
}

// outlived is an error: a connection was open maxOutlive after its certificate had expired.
const outlived = "connections that outlived their certificates"

func maxOutlive() time.Duration {
	if measures() {
		return time.Second
	}
	return 3 * time.Second
}

// outlive connects with certificates that expire within a second, and keeps the connections open.
func outlive(ctx context.Context, t target) error {
	a, err := t.pki.Authority()
	if err != nil {
		return err
	}
	return sideBySide(ctx, 8, again, func(ctx context.Context) error {
		now := time.Now()
		pair, err := a.Issue(pki.Request{Role: pki.Agent, Name: evil, Valid: pki.Period{NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Second)}})
		if err != nil {
			return err
		}
		cert, err := pair.TLS()
		if err != nil {
			return err
		}
		config := t.config(false)
		config.Certificates = []tls.Certificate{cert}
		w, err := t.openWith(ctx, config)
		if err != nil {
			return err
		}
		defer w.Close()
		late, cancel := context.WithDeadline(ctx, cert.Leaf.NotAfter.Add(maxOutlive()))
		defer cancel()
		select {
		case <-w.ended.Done():
		case <-late.Done():
			if ctx.Err() == nil && t.real {
				t.load.add(outlived, 1)
			}
		}
		return nil
	})
}
