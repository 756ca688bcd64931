package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
)

// relay listens at the address of the MQTT broker, which has another address during the test. It terminates the
// TLS of a client with the broker's certificate, and connects to the broker with the client's certificate. It
// sends messages twice, or acknowledges and loses them, as stateless brokers do.
type relay struct {
	broker   string // present address of the broker
	listener net.Listener
	asBroker *tls.Config
	clients  map[string]client // by the common names of their certificates
	wg       sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	ends   map[net.Conn]bool
	closed bool
	random *rand.Rand
	odds   map[pki.Role][2]odds
	did    map[pki.Role][2]did
}

// client is a client that reaches the broker through a relay.
type client struct {
	role pki.Role
	tls  *tls.Config
}

// The directions of a relay.
const (
	toBroker = iota
	toClient
)

// odds are the probabilities that a message is sent twice or lost. did counts such messages.
type (
	odds struct{ twice, dropped float64 }
	did  struct{ twice, dropped int }
)

// relayed puts a relay between all clients and the broker, until the test ends.
func (f *Fleet) relayed(t *testing.T) *relay {
	t.Helper()
	r := &relay{
		asBroker: f.tlsOf(t, pki.Broker, fleet.Broker), clients: map[string]client{}, ends: map[net.Conn]bool{},
		odds: map[pki.Role][2]odds{}, did: map[pki.Role][2]did{},
	}
	r.asBroker.ClientAuth, r.asBroker.ClientCAs = tls.RequireAndVerifyClientCert, r.asBroker.RootCAs
	const seed = 12 // the order of messages influences the result, too
	r.random = rand.New(rand.NewPCG(seed, seed))
	for name, role := range map[string]pki.Role{fleet.SourceID: pki.Source, cluster1: pki.Agent, cluster2: pki.Agent} {
		user, _ := pki.Subject(role, name)
		r.clients[user] = client{role, f.tlsOf(t, role, name)}
	}
	before := f.broker().Args()
	behind, args := f.behind(t)
	f.moveBroker(t, args)
	t.Cleanup(func() {
		r.close()
		f.moveBroker(t, before)
	})
	var err error
	if r.listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", f.MQTTAddr()); err != nil {
		t.Fatal(err)
	}
	r.broker = behind
	r.wg.Go(r.accept)
	return r
}

// behind returns the address of the broker behind a relay, and its arguments there.
func (f *Fleet) behind(t *testing.T) (addr string, args []string) {
	t.Helper()
	const port = "8891"
	host, own, err := net.SplitHostPort(f.MQTTAddr())
	if err != nil {
		t.Fatal(err)
	}
	addr, args = net.JoinHostPort(host, port), slices.Clone(f.broker().Args())
	if !f.stateless {
		return addr, append(args, "--listen="+addr)
	}
	conf := args[len(args)-1]
	text, err := os.ReadFile(filepath.Clean(conf))
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.Replace(string(text), "listener "+own+" ", "listener "+port+" ", 1)
	args[len(args)-1] = conf + ".behind"
	if err := os.WriteFile(conf+".behind", []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	return addr, args
}

// moveBroker restarts the broker with other arguments.
func (f *Fleet) moveBroker(t *testing.T, args []string) {
	t.Helper()
	err := f.broker().Stop()
	f.broker().SetArgs(args)
	if err := errors.Join(err, f.broker().Launch(context.WithoutCancel(t.Context()))); err != nil {
		t.Errorf("move the broker: %v", err)
	}
}

// tlsOf returns the TLS configuration with the certificate of a client or of the broker.
func (f *Fleet) tlsOf(t *testing.T, role pki.Role, name string) *tls.Config {
	t.Helper()
	keys := f.PKI()
	pair, err := tls.LoadX509KeyPair(keys.Cert(role, name), keys.Key(role, name))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(keys.CACert())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}, NextProtos: []string{"mqtt"}}
}

// set sets the odds for messages from and to the clients of a role.
func (r *relay) set(role pki.Role, broker, client odds) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.odds[role] = [2]odds{toBroker: broker, toClient: client}
}

// has returns the counts of a role, by direction.
func (r *relay) has(role pki.Role) [2]did {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.did[role]
}

// cut breaks all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for end := range r.ends {
		_ = end.Close()
	}
}

func (r *relay) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cut()
	r.wg.Wait()
}

func (r *relay) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return // the listener is closed
		}
		near := tls.Server(conn, r.asBroker)
		if r.hold(near) {
			r.wg.Go(func() { r.connect(near) })
		}
	}
}

// hold stores a connection so that cut and close can end it. It returns false if the relay is closed.
func (r *relay) hold(end net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = end.Close()
		return false
	}
	r.ends[end] = true
	return true
}

func (r *relay) drop(end net.Conn) {
	_ = end.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ends, end)
}

// connect copies packets in both directions until one end closes.
func (r *relay) connect(near *tls.Conn) {
	defer r.drop(near)
	if err := near.Handshake(); err != nil {
		return
	}
	p, ok := r.clients[near.ConnectionState().PeerCertificates[0].Subject.CommonName]
	if !ok {
		return
	}
	remote, err := tls.Dial("tcp", r.broker, p.tls)
	if err != nil || !r.hold(remote) {
		return
	}
	defer r.drop(remote)
	var copies [2]copies
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.carry(p.role, toBroker, near, remote, &copies)
		_ = remote.Close()
	}()
	r.carry(p.role, toClient, remote, near, &copies)
	_ = near.Close()
	<-done
}

// again is the maximum number of messages in one repetition. A repetition keeps the order, as MQTT requires: 1 2
// 3 2 3 4, and never 1 2 3 2 4.
const again = 8

// carry copies the packets of one direction, with repetitions and losses.
func (r *relay) carry(role pki.Role, d int, from, to net.Conn, all *[2]copies) {
	in := bufio.NewReader(from)
	var recent []packet
	for {
		p, err := readPacket(in)
		if err != nil {
			return
		}
		sink, out := to, []byte(p)
		id, ok := p.publishID()
		switch {
		case p.kind() == puback && all[1-d].ends(p):
			continue // its sender did not send the copy
		case !ok:
		case r.drops(role, d):
			sink, out = from, binary.BigEndian.AppendUint16([]byte{puback << 4, 2}, id)
		default:
			recent = append(recent[max(0, len(recent)-again+1):], p)
			for _, p := range recent[len(recent)-r.repeats(role, d, len(recent)):] {
				out = slices.Concat(out, all[d].of(p))
			}
		}
		if _, err := sink.Write(out); err != nil {
			return
		}
	}
}

// drops reports whether a message is lost.
func (r *relay) drops(role pki.Role, d int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.random.Float64() >= r.odds[role][d].dropped {
		return false
	}
	has := r.did[role]
	has[d].dropped++
	r.did[role] = has
	return true
}

// repeats returns the number of the latest n messages that are repeated.
func (r *relay) repeats(role pki.Role, d, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.random.Float64() >= r.odds[role][d].twice {
		return 0
	}
	n = 1 + r.random.IntN(n)
	has := r.did[role]
	has[d].twice += n
	r.did[role] = has
	return n
}

// copies are the unacknowledged copies on one connection in one direction.
type copies struct {
	mu      sync.Mutex
	last    uint16
	waiting map[uint16]bool
}

// firstCopy is the first packet identifier of copies. Clients and brokers count up from 1, and no connection of
// a test gets that far.
const firstCopy = 40000

// of returns a copy of a message, with the DUP flag and a new packet identifier.
func (c *copies) of(p packet) packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		c.waiting, c.last = map[uint16]bool{}, firstCopy
	}
	c.last = max(firstCopy, c.last+1)
	c.waiting[c.last] = true
	p = slices.Clone(p)
	p[0] |= 1 << 3 // DUP
	binary.BigEndian.PutUint16(p[p.idAt():], c.last)
	return p
}

// ends reports whether an acknowledgement is for a copy, and removes that copy.
func (c *copies) ends(ack packet) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	body := ack[ack.header():]
	if len(body) < 2 {
		return false
	}
	id := binary.BigEndian.Uint16(body)
	mine := c.waiting[id]
	delete(c.waiting, id)
	return mine
}

// packet is an MQTT packet in its form on the wire.
type packet []byte

// The types of packets that a relay handles.
const publish, puback = 3, 4

func (p packet) kind() byte { return p[0] >> 4 }

// header returns the length of the fixed header, in bytes.
func (p packet) header() int {
	n := 1
	for p[n]&0x80 != 0 {
		n++
	}
	return n + 1
}

// publishID returns the packet identifier of a message of QoS 1.
func (p packet) publishID() (id uint16, ok bool) {
	if p.kind() != publish || p[0]>>1&3 != 1 || len(p) < p.header()+2 || len(p) < p.idAt()+2 {
		return 0, false
	}
	return binary.BigEndian.Uint16(p[p.idAt():]), true
}

// idAt returns the offset of the packet identifier of a message, after its topic.
func (p packet) idAt() int {
	topic := p.header()
	return topic + 2 + int(binary.BigEndian.Uint16(p[topic:]))
}

// readPacket reads the next packet.
func readPacket(r *bufio.Reader) (packet, error) {
	first, err := r.ReadByte()
	if err != nil {
		return nil, err
	}
	p, length := packet{first}, 0
	for shift := 0; ; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return nil, err
		}
		p = append(p, b)
		length |= int(b&0x7f) << shift
		if b&0x80 == 0 {
			break
		}
		if shift == 21 {
			return nil, errors.New("remaining length of more than four bytes")
		}
	}
	p = append(p, make([]byte, length)...)
	_, err = io.ReadFull(r, p[len(p)-length:])
	return p, err
}
