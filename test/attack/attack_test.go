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
	// The same with the certificate of one agent, in publishes.
	"publish": func(ctx context.Context, t target) error {
		return bodies(ctx, t, true, "/io.cloudevents.v1.CloudEventService/Publish")
	},
	"tcp":         connections,
	"idle":        idle,
	"handshakes":  handshakes,
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

// tried are what attackers of a broker try first, to the end: it counts what became of it, and not
// for how long.
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

// side by side runs n attackers, each again whenever it is thrown out.
func sideBySide(ctx context.Context, n int, pause time.Duration, do func(ctx context.Context) error) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range n {
		wg.Go(func() {
			_ = every(ctx, pause, func() error { // until ctx ends
				_ = do(ctx) // whatever the broker does to it, it comes again
				return nil
			})
		})
	}
	return nil
}

// again is how soon an attacker that was thrown out comes again.
const again = 10 * time.Millisecond

// bodies opens eight connections with ten calls each, and sends all but the end
// of a body of 16 MiB on each.
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
					<-w.ended.Done() // the rest never comes
				}
			})
		}
		wg.Wait()
		return nil
	})
}

// connections opens more TCP connections than the broker may have files, and
// says nothing on them.
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

// idle does the same with TLS and HTTP/2, with the agent's certificate.
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
	_, _ = io.Copy(io.Discard, c) // how it ends does not matter
	_ = c.Close()
}

// handshakes sends the same first message of TLS on one connection after the
// other: the broker computes and signs, the attacker does nothing.
func handshakes(ctx context.Context, t target) error {
	hello, err := firstMessage(t.config(false))
	if err != nil {
		return err
	}
	return sideBySide(ctx, 64, time.Millisecond, func(ctx context.Context) error {
		c, err := t.tcp(ctx)
		if err != nil {
			return err
		}
		if _, err = c.Write(hello); err == nil && t.real {
			_, err = io.ReadFull(c, make([]byte, 1)) // the signature is on its way
		}
		if err == nil {
			t.load.add("handshakes begun", 1)
		}
		return errors.Join(err, c.Close())
	})
}

// firstMessage is what a client says first.
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

// reflection asks on four connections what the port serves, without waiting for
// answers.
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

// grow lets the broker answer as much as it likes.
func (w *wire) grow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Fails only where the connection is gone, which the next call says.
	_ = w.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	_ = w.framer.WriteWindowUpdate(0, 1<<30)
}

// resets begins calls and resets them at once, as fast as it can.
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

// crumbs sends bodies byte by byte: each byte comes in a frame of its own.
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

// outlived is what must not be: a connection that was open a second after its
// certificate had ended, or some where times are not judged.
const outlived = "connections that outlived their certificates"

func maxOutlive() time.Duration {
	if measures() {
		return time.Second
	}
	return 3 * time.Second
}

// outlive comes with certificates that end within a second, and stays as long as
// it is let.
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
